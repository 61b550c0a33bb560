"""A run of several processes on this machine: the demo, its table and its summary.

May import `lockstep.service` and the modules below it, but no command and no laboratory.
"""
