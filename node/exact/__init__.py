"""The exact part: chunks, transforms, top-k, and the aggregation in whole numbers.

May import protocol and nothing else of node.

    engine                             what one node did not say yet, and takes out to say it
    local_steps/, demo/                the two algorithms: what enters it, and a commit's step
    contributions                      what all authors of a commit sent
    optimizer/                         both as a torch optimizer, with process_group for its ranks
    backend                            how chunks are worked on: the interface and the choice of
    plain, accelerator, cpu_kernels    three implementations; kernels/ is the compiled code
    chunks, dct, top_k, device_packing      the steps
"""
