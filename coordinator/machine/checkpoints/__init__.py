"""The published checkpoints of a run. Pure."""
