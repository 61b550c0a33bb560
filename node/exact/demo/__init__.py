"""DeMo as published: votes of gradients, in place of movements.

`momentum` keeps and sends what gradients add, `votes` sums what all have sent, `aggregate` makes a
step of the sign of that sum, with the same bits on every node.
"""
