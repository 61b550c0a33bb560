"""The orders of a run's operator, and the keys that the run admits. Pure."""
