"""Compares published evidence of copies again, while its run is replayed. It needs no data."""

from collections import defaultdict
from collections.abc import Iterable

from lockstep.audit.copies.judge import is_proof
from lockstep.audit.copies.likeness import Sent
from lockstep.audit.copies.payloads import Payloads
from protocol.codec.commits import Commit
from protocol.codec.evidence import WHOLE, CopySource, Evidence, WorkAudit
from protocol.errors import DivergedError
from protocol.ids import Digest, PeerId, short


class CopyCheck:
    """The check of some evidence against one walk through a record."""

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        self._wanted: dict[int, list[tuple[PeerId, WorkAudit, CopySource]]] = defaultdict(list)
        self._sources: set[int] = set()
        """Rounds whose payloads some evidence needs."""
        self._sent: dict[int, list[Sent]] = {}
        """The payloads of those rounds that the walk has passed."""
        for each in evidence:
            for audit in each.audits:
                if audit.source:
                    self._wanted[audit.round].append((each.author, audit, audit.source))
                    self._sources |= {audit.source.round - 1, audit.source.round}
        self._begun: int | None = None
        """The first round of the walk."""
        self.checked = 0
        """Copies that were compared again, with the same result."""
        self._passed = 0

    @property
    def unchecked(self) -> int:
        """Copies that the walk has not come by, or whose source it has not."""
        return sum(map(len, self._wanted.values())) + self._passed

    async def before(self, commit: Commit, voids: frozenset[Digest], read: Payloads) -> None:
        """Compare what is said about a commit; `DivergedError` for what another result comes of."""
        sent = [
            Sent(commit.round, entry.author, entry.digest)
            for entry in commit.entries
            if entry.digest not in voids
        ]
        self._begun = commit.round if self._begun is None else self._begun
        if commit.round in self._sources:
            self._sent[commit.round] = sent
        for author, audit, source in self._wanted.pop(commit.round, ()):
            accused = Sent(audit.round, author, audit.digest)
            if accused not in sent:
                raise DivergedError(f"{_against(author, audit)}, which the log does not have")
            found = await self._likeness(accused, source, read)
            if found is None:
                self._passed += 1  # the walk began behind the source
                continue
            if round(WHOLE * found) != audit.agreement:
                raise DivergedError(
                    f"{_against(author, audit)} as {audit.agreement / WHOLE:.2%} copied, the "
                    f"comparison says {found:.2%}"
                )
            self.checked += 1

    async def _likeness(self, accused: Sent, source: CopySource, read: Payloads) -> float | None:
        """How far a payload is a copy; 0 where it proves nothing, None where it cannot be told."""
        if source.digest == accused.digest:
            opened = await read.opened(accused)
            named = (opened[0].author, opened[0].round) if opened else None
            return float(named == (source.author, source.round))
        if source.round == accused.round:  # the gradients tell which is the copy
            copied = Sent(source.round, source.author, source.digest)
            is_there = copied in self._sent[source.round]
            return await read.likeness(accused, copied) if is_there else 0.0
        if source.round not in self._sent or 0 < source.round == self._begun:
            return None  # the round before it was not seen; before the first one is none
        then = self._sent[source.round]
        copied = Sent(source.round, source.author, source.digest)
        if copied not in then:
            return 0.0
        own = [each for each in then if each.author == accused.author]
        before = self._sent.get(source.round - 1, ())
        counted = any(each.author == accused.author for each in before)
        like = await read.likeness(own[0], copied) if own and counted else None
        found = await read.likeness(accused, copied)
        return found if is_proof(accused, copied, found, like) else 0.0


def _against(author: PeerId, audit: WorkAudit) -> str:
    return (
        f"evidence against {short(author)} names payload {audit.digest.hex()[:16]} of round "
        f"{audit.round}"
    )
