"""The coordinator of a run: keeps its clock, decides its rounds, signs its commits.

It sees digests, never gradients, and runs without torch. `machine` decides; the modules beside it
carry the decisions out. May import `protocol`, nothing of `node` or `lockstep`.
"""

LOCKSTEP = True
"""Tells this package from others of its name (`lockstep.own_packages`)."""
