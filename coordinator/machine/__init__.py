"""The pure state machine of a run: rounds, members, pacing, verdicts on digests. It imports no IO,
clock, randomness or logging, nor the modules of `coordinator`.

    machine     the door; beside it what events are news, what always holds, what is kept of rounds
    rules/      one file for each kind of event, and for each part of a round's life
    state/      what is kept, and what may be asked of it
    events/     what the machine takes and returns
"""
