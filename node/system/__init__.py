"""This computer: files, clock, device, memory. Imports nothing of the node."""
