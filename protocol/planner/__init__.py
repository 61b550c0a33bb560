"""The planner: how long a round of each method takes on given machines and links, and why.

Pure arithmetic, without torch: `parameters` and `payload_bytes` say how large things are, `compute`
and `links` what a machine and a line can do, `timing` how machines wait for each other, `methods`
puts them together, `placement` chooses neighbours, `plan` compares everything, and `advice` and
`chart` tell a person. A coordinator may use `links` and `timing` to judge its own rounds.
"""
