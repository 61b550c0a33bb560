"""The ranks of a node: processes of one device each, which share the passes of rank 0.

    rank 0        the node of the network: key, links, data, committed state, local steps
    the others    followers: each holds the network, obeys rank 0's orders, and has nothing else

    rank 0     order ----------------> own pass | answers <---- | sum | step | order (load) ...
    followers        '--> their passes | answer ----'           | sum |

Orders, answers and signs of life go through torch's store, parameters and gradients through a
process group: gloo between CPUs, NCCL between cards. Who fails, hangs or is silent is named, and
ends the work of rank 0 as a failed device does.

    place         the rank of this process, from the environment that torchrun makes
    orders        what rank 0 asks for, and what it hears
    line          store and process group, signs of life, how long anything is waited for
    dealing       the samples of each rank, by its speed
    crew, passes  rank 0's side
    following     a follower
    launch        ranks on this machine, started by rank 0
"""
