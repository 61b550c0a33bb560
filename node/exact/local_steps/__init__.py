"""Local steps: many steps of a node's own optimizer in a round, and what they moved, exactly.

`optimizer` makes the steps, `residual` keeps and sends what they moved, `aggregate` makes one
movement of everybody's, with the same bits on every node. The room is a part of `node.exact`, whose
chunks, transforms and packing it uses.
"""
