"""A siege: hosts without a key, at the ports of coordinator, node, relay and auditor of one public
run of real processes. They speak TCP, TLS and HTTP/2 by hand, so that gRPC and the gate before it
(`border`) meet what no client of ours would send.

    frames     HTTP/2 as bytes
    wire       a connection from an address of the attacker's choice, with TLS or without
    attacks    what one connection does
    catalogue  the attacks: what, over how many connections, from how many networks
    __main__   plays one of them in a process of its own
    run        the run, and newcomers with a token that knock meanwhile
    trial      one attack on it, and what it cost

`python -m tests.benchmarks.siege` measures all of it, `test_siege` judges it.
"""
