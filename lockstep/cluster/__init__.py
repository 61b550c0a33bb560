"""A run of several processes on this machine: the demo, its table and its summary."""
