"""The shell of a long-lived process: admin port, signals, keys, logs, traffic of the kernel's
count.
"""
