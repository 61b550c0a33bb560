"""The rules that all parties of a run must agree on: messages, encodings, arithmetic. No IO, no
clock, no torch.
"""

LOCKSTEP = True
"""Tells this package from others of its name (`lockstep.own_packages`)."""
