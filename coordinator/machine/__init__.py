"""Pure: rounds, members, pacing, verdicts on digests. No IO, no clock, no logging."""
