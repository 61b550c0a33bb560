"""The pure state machine of a run: rounds, members, pacing, verdicts on digests. It imports no IO,
clock, randomness or logging, nor the modules of `coordinator`.
"""
