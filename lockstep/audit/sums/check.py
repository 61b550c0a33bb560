"""Adds the ranges of a run again. Whoever has the parts finds the same result, or those who signed
another one were wrong.
"""

from lockstep.audit.differences import Difference
from lockstep.audit.sums.adding import RangeAdder
from lockstep.audit.sums.signatures import signed_sums
from protocol import wire_pb2 as wire
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import Commit
from protocol.ids import Digest
from protocol.sums.asked import question_behind


class SumsCheck:
    """The check of all sums in one walk through a record."""

    def __init__(self, adder: RangeAdder) -> None:
        self._adder = adder
        self.added = 0
        """Ranges that were added again, with the same result."""
        self.unadded = 0
        """Ranges of which a part is not there."""

    async def before(
        self, commit: Commit, recorded: wire.Committed, voids: frozenset[Digest]
    ) -> None:
        """Add the ranges of a commit again; `Difference` for one whose result is another, with the
        nodes that have signed it.
        """
        for result in commit.sums.results if commit.sums else ():
            if commit.sums is None or result.digest in voids:
                continue
            found = await self._adder.add(commit, question_behind(commit, commit.sums, result))
            if found is None:
                self.unadded += 1
            elif found == result.digest:
                self.added += 1
            else:
                raise Difference(commit.round, _words(commit, recorded, result, found))


def _words(commit: Commit, recorded: wire.Committed, result: RangeSum, found: Digest) -> str:
    said = (
        f"{result.title} is {result.digest.hex()[:16]} in the commit, the parts of its authors add "
        f"up to {found.hex()[:16]}"
    )
    signers = sorted(
        {
            each.summer
            for each in signed_sums(commit, recorded)
            if (each.number, each.digest) == (result.number, result.digest)
        }
    )
    if not signers:
        return f"{said}; the record has no signature under it any more"
    cure = "; ".join(f"lockstep run ban {summer}" for summer in signers)
    return f"{said}; signed by {' and '.join(signers)}, whom the operator excludes by {cure}"
