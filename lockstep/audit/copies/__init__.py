"""The search for copies: payloads of one author that are those of another, or its own of before.

`likeness` compares payloads, `judge` decides what is a copy and of whom; both are pure. `watching`
looks at every payload of a replay, and `check` compares published evidence again. No gradient is
computed, so it needs no data, and it works where rounds overlap.
"""
