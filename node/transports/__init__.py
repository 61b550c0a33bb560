"""Reliable byte pipes between two machines: one interface, two implementations. Imports
`system`."""
