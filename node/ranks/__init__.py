"""The ranks of a node: processes of one device each, which share its passes and, with local steps,
its state.

    rank 0        the node of the network: key, links, data, orders; and a part like the others
    the others    followers: each has a part, and obeys rank 0's orders
    a part        its rows of the network's weights and gradients; committed parameters, residual,
                  optimizer's state and whole weights of the parameters that the rank owns; in runs
                  without local steps the network whole

    rank 0     order --------------> own pass | answers <-- | sum | step | order (load) ...
    followers        '--> their passes | answer --'         | sum | step |

Orders, answers and signs of life go through torch's store, parameters and gradients through a
process group: gloo between CPUs, NCCL between cards. Who fails, hangs or is silent is named, and
ends the work of rank 0 as a failed device does. Who has no memory for a pass ends it for all.

    place         the rank of this process, from the environment that torchrun makes
    orders        what rank 0 asks for, and what it hears
    line          store and process group, signs of life, how long anything is waited for
    exchange      tensors between ranks
    dealing       the samples of each rank, by its speed
    clock         the time in which a rank waits for nobody
    sharded       a rank's part of the network, by torch's `fully_shard`
    vocabulary    its rows of embedding and head
    part          what a rank holds, and its part in each order
    crew, passes  rank 0's side
    replica       the replica of all ranks, as rank 0 has it
    following     a follower
    launch        ranks on this machine, started by rank 0
"""
