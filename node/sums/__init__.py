"""The summer's role: sums of the ranges that the coordinator asks this node for. Imports
`protocol.sums` and numpy, no torch.

    summer        from the question to the signed result
    part_check    the parts of payloads, judged by the shape of their range
    reports       the parts that this node holds, told to the coordinator
"""
