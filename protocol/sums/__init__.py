"""Sums that somebody makes for all: ranges of chunks, parts of payloads, and adding. Pure, integers
only, and no torch.
"""
