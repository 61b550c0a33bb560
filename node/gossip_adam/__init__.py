"""Gossip Adam: nodes keep parameters of their own and mix them with neighbours while they compute.

May import protocol and node.exact's process group. Pure torch except for `exchange`
and `optimizer`.

    adam          Adam with local moments, and moments of accumulated gradients
    wire          what crosses an edge: whole parameters, or int8 differences to a shared estimate
    projection    the short report from which distances are estimated
    mixer         one node: finish a mix, step, begin the next one
    exchange      messages between the ranks of a torch process group
    optimizer     all of it as a torch optimizer
"""
