"""One authenticated link per pair of peers, over any transport. May import `node.transports` and
`node.system`.
"""
