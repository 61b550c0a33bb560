"""Judges published evidence by the published rule, while its run is replayed. It needs no data."""

from collections import defaultdict
from collections.abc import Iterable

from lockstep.audit.work.published import Accusation
from protocol.audit import rule
from protocol.audit.shares import unlike
from protocol.codec.commits import Commit
from protocol.codec.evidence import Evidence, WorkAudit
from protocol.errors import DivergedError
from protocol.ids import short
from protocol.runfile import RunSpec


class ProofCheck:
    """The check of what authors were accused of against one walk through a record."""

    def __init__(self, accusations: Iterable[Accusation], spec: RunSpec) -> None:
        self._spec, self._by = spec, spec.algorithm.facts.thresholds
        self._judged: list[Evidence] = []
        self._drawn: dict[int, list[tuple[Accusation, WorkAudit]]] = defaultdict(list)
        """By round, the audits whose lots the log is asked about."""
        for each in accusations:
            self._judged.append(each.evidence)
            for audit in each.evidence.audits:
                self._drawn[audit.round].append((each, audit))

    def before(self, commit: Commit) -> None:
        """Compare what is said about a commit; `DivergedError` for a round that was not drawn, or
        does not have what is said of it.
        """
        for said, audit in self._drawn.pop(commit.round, ()):
            evidence = said.evidence
            flaw = rule.undrawn(evidence, audit, said.public_key, commit)
            flaw = flaw or unlike(evidence, audit, commit, self._by)
            if audit.source is None:  # copies are compared whole
                flaw = flaw or rule.unfounded(evidence.author, audit, commit)
            if flaw:
                raise DivergedError(f"evidence against {short(evidence.author)}: {flaw}")

    def proven(self) -> int:
        """The number of accusations that prove what they find; `DivergedError` for one that proves
        nothing.
        """
        for each in self._judged:
            if flaw := rule.flaw(each, self._by) or rule.misplaced(each, self._spec):
                raise DivergedError(f"evidence against {short(each.author)} proves nothing: {flaw}")
        return len(self._judged)
