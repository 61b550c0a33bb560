"""The border: what everything foreign crosses before gRPC sees it, at every public port."""

LOCKSTEP = True
"""Tells this package from others of its name (`lockstep.own_packages`)."""
