"""Takes an auditor's evidence: it becomes an act of the run's chain.

proves something by the published rule, and the log has what it names --> demote
does not -----------------------------------------------------------> reject: an alarm

signed by a summer under the question of its round, and added up to another digest --> refute
"""

import asyncio
import contextlib

from coordinator.journal import Journal
from coordinator.machine.events.acts import REASON_MAX, Demote, Refute, Reject
from coordinator.machine.rules import demotion
from coordinator.machine.rules.sums import refuting
from coordinator.sequencer import Sequencer
from coordinator.service.ordering import Ordering
from protocol import wire_pb2 as wire
from protocol.audit import rule
from protocol.audit.shares import unlike
from protocol.audit.thresholds import Thresholds
from protocol.codec.commits import Commit, open_commit
from protocol.codec.evidence import Evidence, SignedEvidence, open_evidence
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.sums.signed import read_wrong_sum, require_signed


class EvidenceDesk:
    """The evidence of one run's auditors. `coordinator_key` has signed the journal's commits."""

    def __init__(
        self, sequencer: Sequencer, journal: Journal, coordinator_key: bytes, ordering: Ordering
    ) -> None:
        self._sequencer, self._journal, self._key = sequencer, journal, coordinator_key
        self._ordering = ordering

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
        if demotion.objection(act, self._sequencer.rounds):
            return  # said again, or the operator has judged
        if flaw := await asyncio.to_thread(self._flaw, evidence, signed.public_key):
            await self._reject(signed, flaw)
            raise RemoteProtocolError(flaw)
        try:
            await self._ordering.order(act)
        except SettingsError:
            return  # somebody was faster

    async def refute(self, peer: PeerId, message: wire.WrongSum) -> None:
        """Demote the summer whose signed sum this auditor has found wrong; what changes nothing is
        dropped. `RemoteProtocolError` for evidence that no honest auditor sends.
        """
        said, act = read_wrong_sum(message.body), Refute(peer, message.body)
        if refuting.objection(act, self._sequencer.rounds):
            return  # said again, or the operator has judged
        commit = await asyncio.to_thread(self._commit, said.round)
        if commit is None:
            raise RemoteProtocolError(f"expected a sum of a committed round, got {said.round}")
        require_signed(commit, said.signed)
        with contextlib.suppress(SettingsError):  # somebody was faster
            await self._ordering.order(act)

    async def _reject(self, signed: SignedEvidence, reason: str) -> None:
        act = Reject(signed.body, signed.public_key, signed.signature, reason[:REASON_MAX])
        if demotion.rejection_objection(act, self._sequencer.rounds.state):
            return  # said again, or often enough
        with contextlib.suppress(SettingsError):  # somebody was faster
            await self._ordering.order(act)

    def _flaw(self, evidence: Evidence, public_key: bytes) -> str:
        """Why the evidence changes no standing, in a sentence; empty when it does."""
        spec = self._sequencer.rounds.spec
        by = spec.algorithm.facts.thresholds
        found = rule.flaw(evidence, by) or rule.misplaced(evidence, spec)
        return found or self._unfounded(evidence, public_key, by)

    def _unfounded(self, evidence: Evidence, public_key: bytes, by: Thresholds) -> str:
        for audit in evidence.audits:
            commit = self._commit(audit.round)
            if flaw := rule.unfounded(evidence.author, audit, commit):
                return flaw
            if flaw := rule.undrawn(evidence, audit, public_key, commit):
                return flaw
            if flaw := unlike(evidence, audit, commit, by):
                return flaw
            source = audit.source
            if source is None or rule.is_foreign(audit):
                continue
            if flaw := rule.sourceless(source, self._commit(source.round)):
                return flaw
        return ""

    def _commit(self, round: int) -> Commit | None:
        """The commit of a round; None where it was skipped."""
        for row in self._journal.commits(round - 1, 1, for_audit=True):
            commit = open_commit(row.signed, self._key)
            return commit if commit.round == round else None
        return None
