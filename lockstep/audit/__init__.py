"""Replays a run's log and judges what it published."""
