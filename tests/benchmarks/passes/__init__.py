"""Memory and time of a pass: see `__main__`."""
