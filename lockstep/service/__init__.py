"""The shell of a long-lived process: admin port, signals, keys, logs, and the traffic that the
kernel counts.

May import: run file, settings file, console and exit codes of `lockstep`; nothing of its commands
or clusters.
"""
