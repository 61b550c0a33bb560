"""The audit of work: whether the authors of a run computed what they were asked to.

`lottery` draws payloads, `recompute` computes their gradients again, `judge` decides what the
agreement of signs says beside authors of like `ages`, `auditing` does all of it beside a replay,
`authors` joins it with the search for copies, and `check` computes `published` evidence again.
`lottery`, `judge` and `ages` are pure.
"""
