"""Keeps the clock of a run: rounds, membership, commits. Sees digests, never gradients. No
torch."""

LOCKSTEP = True
"""Tells this package from others of its name (`lockstep.own_packages`)."""
