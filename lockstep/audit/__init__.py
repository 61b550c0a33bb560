"""Replays a run's log and compares the result with its published checkpoint."""
