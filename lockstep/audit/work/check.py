"""Computes published evidence again, while its run is replayed.

The evidence names payloads of the log; the log names their samples. Whoever has both and the run's
data finds the same agreement, but for the rounding of another processor: signs of gradients that
are next to nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from lockstep.audit.acting import movements_of, weights_of
from lockstep.audit.copies.payloads import Payload, Payloads
from lockstep.audit.copies.twins import crossing
from lockstep.audit.work.auditing import trained
from lockstep.audit.work.recompute import Recomputer
from node.exact.sign_audit import Weights
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.audit import rule
from protocol.codec.commits import Commit
from protocol.codec.evidence import WHOLE, Cross, Evidence, WorkAudit
from protocol.errors import DivergedError
from protocol.ids import Digest, PeerId, short
from protocol.shuffle import Share

TOLERANCE = 100
"""Ten-thousandths by which two machines may differ."""


class WorkCheck:
    """The check of some evidence against one walk through a record."""

    def __init__(self, evidence: Iterable[Evidence], recomputer: Recomputer) -> None:
        self._recomputer = recomputer
        self._wanted: dict[int, list[tuple[PeerId, WorkAudit]]] = defaultdict(list)
        for each in evidence:
            for audit in each.audits:
                if audit.source is None or audit.cross:  # other copies need no data
                    self._wanted[audit.round].append((each.author, audit))
        self.checked = 0
        """Audits that were computed again, with those of their companions, and the same result."""

    async def before(
        self,
        commit: Commit,
        recorded: wire.Committed,
        voids: frozenset[Digest],
        replica: Replica,
        payload: Payload,
    ) -> None:
        """Compare what is said about a commit that is about to be applied; `DivergedError` for what
        another result comes of.
        """
        wanted = self._wanted.pop(commit.round, ())
        if not wanted:
            return
        self._recomputer.stand_at(replica.committed, commit.learning_rate_bits)
        shares = trained(commit, recorded, voids)
        entries = {entry.author: entry for entry in commit.entries}
        weights = dict[PeerId, Weights]()
        if any(audit.source is None for _, audit in wanted):  # a copy is told by no weight
            read = Payloads(payload, replica.shape)
            movements = await movements_of(commit, voids, read, self._recomputer.algorithm)
            weights = await asyncio.to_thread(weights_of, movements, replica.shape.chunks)
        found = dict[PeerId, int]()
        for author, audit in wanted:
            if flaw := rule.unfounded(author, audit, commit):
                raise DivergedError(f"evidence against {short(author)}: {flaw}")
            source = audit.source
            said = [(author, audit.agreement)]
            said += [(each.author, each.agreement) for each in audit.companions]
            peers = [author, source.author] if source else [peer for peer, _ in said]
            for peer in peers:
                if peer not in shares:
                    raise DivergedError(
                        f"evidence against {short(author)} names work of {short(peer)} in round "
                        f"{commit.round}, which the log has without its samples"
                    )
            if source:
                sent = await payload(commit.round, entries[author])
                await self._check_cross(author, audit, [shares[peer] for peer in peers], sent)
            else:
                for peer, agreement in said:
                    if peer not in found:
                        sent = await payload(commit.round, entries[peer])
                        found[peer] = await self._agreement(shares[peer], sent, weights.get(peer))
                    _compare(author, peer, audit.round, agreement, found[peer])
            self.checked += 1

    async def _check_cross(
        self, author: PeerId, audit: WorkAudit, shares: Sequence[Sequence[Share]], sent: bytes
    ) -> None:
        """Whether a payload follows the gradient over the second shares, not over the first, its
        author's own.
        """
        followed = []
        for each in shares:
            await self._compute(each)
            followed.append(self._recomputer.followed(sent))
        own, other = followed
        cross = Cross(0, 0) if own is None or other is None else crossing(own, other)
        again = msgspec.structs.replace(audit, cross=cross)
        if not rule.is_crossed(again, self._recomputer.algorithm.facts.thresholds):
            raise DivergedError(
                f"evidence against {short(author)} says that its payload of round {audit.round} "
                "follows another's gradient, the recomputation says that it has the signs of its "
                f"own in {cross.own} of {cross.differ} places"
            )

    async def _agreement(
        self, shares: Sequence[Share], sent: bytes, weights: Weights | None
    ) -> int:
        await self._compute(shares)
        found = self._recomputer.agreement(sent, weights)
        return round(WHOLE * found.share) if found.compared else 0

    async def _compute(self, shares: Sequence[Share]) -> None:
        passes = self._recomputer.begin(shares)
        while await asyncio.to_thread(passes.next):
            pass
        passes.finish()

    def require_complete(self) -> None:
        """`DivergedError` when the evidence names rounds that the walk did not come by."""
        if self._wanted:
            raise DivergedError(
                f"evidence names round {min(self._wanted)}, which the replay did not pass; begin "
                "earlier, without --from"
            )


def _compare(author: PeerId, peer: PeerId, round: int, agreement: int, found: int) -> None:
    if abs(found - agreement) > TOLERANCE:
        whose = "its payload" if peer == author else f"the payload of {short(peer)}"
        raise DivergedError(
            f"evidence against {short(author)} says that {whose} of round {round} agrees in "
            f"{agreement / WHOLE:.2%} of signs, the recomputation says {found / WHOLE:.2%}"
        )
