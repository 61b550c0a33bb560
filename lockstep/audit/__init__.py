"""Replays a run's log and compares the result with what the run published."""
