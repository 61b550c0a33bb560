"""The pieces of a round, which the trainer puts in order.

Imports every room of node/ but `process`, `trainer` and `relay`.

    agenda, events              the next step of the node. Pure
    inbox                       the coordinator's messages, sorted
    context                     the other parts of a node, as rounds need them
    compute                     passes until the bell
    own_payloads                this node's payloads, and which of them are undecided
    collecting                  the payloads of a commit
    witness                     receipts for the payloads of others
    deadline                    waits that can be given a limit
    catching_up/                a log that cannot be replayed
    state_requests/             a checkpoint or a validation loss that the coordinator asks for
"""
