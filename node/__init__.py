"""Trains: DeMo, the round, gossip, catch-up."""

LOCKSTEP = True
"""Tells this package from others of its name (`lockstep.own_packages`)."""
