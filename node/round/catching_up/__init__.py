"""How a node comes to the head of a log that it cannot replay: from a snapshot, or, where nodes mix
parameters, from a member's newest payload.
"""
