"""Keeps the clock of a run: rounds, membership, commits. Sees digests, never gradients. No
torch.
"""
