"""The exact part: chunks, transforms, top-k, and the aggregation in whole numbers.

May import protocol and nothing else of node.

    engine, aggregate                  one node's momentum; a commit's step
    optimizer/                         both as a torch optimizer, with process_group for its ranks
    backend                            how chunks are worked on: the interface and the choice of
    plain, accelerator, cpu_kernels    three implementations; kernels/ is the compiled code
    chunks, dct, top_k, vote_sum, device_packing      the steps
"""
