"""Takes an auditor's evidence: it becomes an act of the run's chain, if the log has what it
names.
"""

import asyncio
from collections.abc import Awaitable, Callable

from coordinator.journal import Journal
from coordinator.machine.operator import demotion
from coordinator.machine.operator.acts import Act, Demote, Ordered
from coordinator.sequencer import Sequencer
from protocol import wire_pb2 as wire
from protocol.codec.commits import open_commit
from protocol.codec.evidence import Evidence, SignedEvidence, open_evidence
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import Digest, PeerId


class EvidenceDesk:
    """The evidence of one run's auditors. `coordinator_key` has signed the journal's commits."""

    def __init__(self, sequencer: Sequencer, journal: Journal, coordinator_key: bytes) -> None:
        self._sequencer, self._journal, self._key = sequencer, journal, coordinator_key
        self.order: Callable[[Act], Awaitable[Ordered]] | None = None
        """Carries out an act; set by the operator's desk."""

    async def take(self, peer: PeerId, message: wire.Evidence) -> None:
        """Demote the author that the evidence of this auditor names; what changes nothing is
        dropped. `RemoteProtocolError` for evidence that no honest auditor sends.
        """
        signed = SignedEvidence(message.body, message.public_key, message.signature)
        auditor, evidence = open_evidence(signed)
        run_id = self._sequencer.rounds.run_id
        if (auditor, evidence.run_id) != (peer, run_id):
            raise RemoteProtocolError(
                f"expected evidence of {peer} in run {run_id}, got that of {auditor} in run "
                f"{evidence.run_id}"
            )
        act = Demote(signed.body, signed.public_key, signed.signature)
        rounds = self._sequencer.rounds
        if self.order is None or demotion.objection(act, rounds.state, rounds.members):
            return  # said again, or the operator has judged
        if flaw := await asyncio.to_thread(self._flaw, evidence):
            raise RemoteProtocolError(flaw)
        try:
            await self.order(act)
        except SettingsError:
            return  # somebody was faster

    def _flaw(self, evidence: Evidence) -> str:
        """The first payload that the evidence names and no commit has; empty when all are there."""
        for audit in evidence.audits:
            named = [(audit.round, evidence.author, audit.digest)]
            source = audit.source
            if source and source.digest != audit.digest:
                named.append((source.round, source.author, source.digest))
            for round, author, digest in named:
                if not self._is_committed(round, author, digest):
                    return (
                        f"expected evidence about committed payloads, got one of round {round} "
                        f"that no commit names: {digest.hex()[:16]}"
                    )
        return ""

    def _is_committed(self, round: int, author: PeerId, digest: Digest) -> bool:
        for row in self._journal.commits(round - 1, 1):
            commit = open_commit(row.signed, self._key)
            entries = ((entry.author, entry.digest) for entry in commit.entries)
            return commit.round == round and (author, digest) in entries
        return False
