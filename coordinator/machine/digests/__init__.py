"""What members report of their states: the votes on a digest, the verdicts on members whose state
differs, and the word of auditors.
"""
