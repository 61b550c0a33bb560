"""Rounds with summers: who adds, the parts that they hold, and what they find."""
