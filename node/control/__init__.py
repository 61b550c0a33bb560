"""The line to the coordinator.

Imports `transports`, `system` and `traffic`.

    channel, calls              the gRPC channel; calls that need no session
    client, session             the session; a new one when this node's addresses change
    first_contact               the time before the first answer
    described_run               the run as the coordinator describes it, checked
    decisions, decision         commits and skips in order, each checked once
    members, addresses          the member list; the addresses that this node announces
"""
