"""The state digests that members report: the votes on a digest, the verdicts on members whose state
differs, and the word of auditors.
"""
