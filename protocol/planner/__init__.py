"""The planner: how long a round of each method takes on given machines and links, and why.

Pure arithmetic, without torch: `parameters` and `payload_bytes` say how large things are, `compute`
and `links` what a machine and a line can do, `timing` how machines wait for each other, `methods`
puts them together, `sums` says what a node sends in a round that summers add, `groups` finds near
nodes, `plan` compares everything, and `advice` tells a person. A coordinator uses `methods` to
judge its own rounds.
"""
