"""What an auditor tells the coordinator: the state after each round that it has replayed to, and
evidence against authors and summers.

    replayed --> told at once --> told again every `REPEAT_S`, while it is one of the newest

The coordinator hears it if the operator has named the auditor, maybe later than the auditor came,
and messages get lost with a session: so the newest words are repeated, and those that the
coordinator knows change nothing there. A word that turns out to be of a state that the chain does
not make any more, because a payload became void, is taken back here and said anew.
"""

from collections.abc import Callable

from protocol import wire_pb2 as wire
from protocol.codec.evidence import SignedEvidence
from protocol.ids import Digest, PeerId
from protocol.sums.signed import WrongSum, wrong_sum_bytes

WORDS_KEPT = 64
"""Newest rounds whose words are repeated: as many as the coordinator compares."""

EVIDENCE_KEPT = 16
"""Newest evidence that is repeated, and newest summers with a wrong sum."""

REPEAT_S = 10.0
"""Pause between two repetitions."""


class Words:
    """The words of one auditor. `send` hands a message to the session, and drops it without one."""

    def __init__(self, send: Callable[[wire.NodeMessage], None]) -> None:
        self._send = send
        self._newest: dict[int, wire.Audited] = {}
        self._evidence: list[wire.Evidence] = []
        self._wrong_sums: dict[PeerId, wire.WrongSum] = {}
        """The newest of each summer."""

    def replayed(self, round: int, digest: int, snapshot_sha256: Digest | None, voids: int) -> None:
        """The replay has come to the state after a round; -1 for genesis. `voids` counts the void
        payloads and the restarts that it has passed over.
        """
        word = wire.Audited(
            round=round, state_digest=digest, snapshot_sha256=snapshot_sha256 or b"", voids=voids
        )
        self._newest[round] = word
        while len(self._newest) > WORDS_KEPT:
            del self._newest[min(self._newest)]
        self._send(wire.NodeMessage(audited=word))

    def accuse(self, signed: SignedEvidence) -> None:
        """An author did not do its work."""
        said = wire.Evidence(
            body=signed.body, public_key=signed.public_key, signature=signed.signature
        )
        self._evidence = [*self._evidence, said][-EVIDENCE_KEPT:]
        self._send(wire.NodeMessage(evidence=said))

    def refute(self, said: WrongSum) -> None:
        """A summer has signed a wrong sum."""
        message = wire.WrongSum(body=wrong_sum_bytes(said))
        self._wrong_sums.pop(said.signed.summer, None)
        self._wrong_sums[said.signed.summer] = message
        if len(self._wrong_sums) > EVIDENCE_KEPT:
            del self._wrong_sums[next(iter(self._wrong_sums))]
        self._send(wire.NodeMessage(wrong_sum=message))

    def take_back(self, after_round: int) -> None:
        """The replay goes back: say nothing of later states until it comes to them again."""
        for round in [round for round in self._newest if round > after_round]:
            del self._newest[round]

    def repeat(self) -> None:
        """Say the newest words again, oldest first."""
        for said in self._evidence:
            self._send(wire.NodeMessage(evidence=said))
        for wrong in self._wrong_sums.values():
            self._send(wire.NodeMessage(wrong_sum=wrong))
        for round in sorted(self._newest):
            self._send(wire.NodeMessage(audited=self._newest[round]))
