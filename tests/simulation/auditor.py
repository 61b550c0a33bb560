"""The judge of the nodes. It sees each change of a node's state and each message, and it knows the
coordinator's journal.

Its rules:
- a node applies exactly the commits of the journal, in order, without the payloads that the
  journal calls void and with all others, and no other node has another digest after the same
  commit and the same voids;
- a node announces only rounds that were opened, and offers and confirms only payloads that are on
  its disk, verified;
- with local steps, a commit weighs an author by the samples that it trained in the round, and the
  author's scale says the same;
- a payload that a commit counts holds the samples that its author trained in the round, no others,
  and the record of the commit names the same;
- in the end the samples in the parameters are those that the commits count.

That no sample is counted twice or lost is judged by the books of the coordinator's referee
(`tests.simulation.checkers`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from protocol.codec.chain import Restart, Void
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import (
    Commit,
    Entry,
    Needed,
    commit_digest,
    genesis_digest,
)
from protocol.codec.payload import Coefficients, PayloadShape
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share
from protocol.sums.part_list import PartList, list_of
from protocol.sums.parts import cut
from protocol.sums.receipts import receipt_name
from tests.simulation.checkers import require
from tests.simulation.movements import Work, added_again


@dataclass
class Auditor:
    """The judge of one run."""

    commit_of: Callable[[int], Commit | None]
    """The commit of a round in the coordinator's journal."""
    commit_before: Callable[[int], Commit | None]
    """The commit before a round."""
    is_void: Callable[[int, Digest], bool]
    """Whether the journal calls a payload of a round void."""
    opened_until: Callable[[], int]
    """The newest round that the coordinator has opened."""
    trained_of: Callable[[int], Sequence[Sequence[Share]]]
    """The samples of each entry of a round's commit, by the coordinator's journal."""
    chain: Callable[[], Sequence[Void | Restart]] = tuple
    """The voids and restarts in the journal, in order."""
    digests: dict[tuple[int, int], int] = field(default_factory=dict)
    """Digest of the state after a round, by the number of void payloads that it passed over."""
    trained: dict[tuple[PeerId, int], tuple[int, ...]] = field(default_factory=dict)
    """The positions that an author trained for its payload of a round."""
    silent: set[tuple[PeerId, int]] = field(default_factory=set)
    """Authors that, with local steps, could move nothing in a round."""
    works: dict[tuple[PeerId, int], Work] = field(default_factory=dict)
    """With local steps: what each author trained in a round."""
    payloads: dict[Digest, int] = field(default_factory=dict)
    """The round of every payload that was ever announced."""
    roots: dict[Digest, tuple[bytes, PartList]] = field(default_factory=dict)
    """Every payload that an author made where summers add, by its roots, with the list of parts."""
    receipts: dict[int, Digest] = field(default_factory=dict)
    """The root or payload that was announced, by its name in the receipts of summers."""
    expected: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The result of each range of a round, as whoever adds finds it."""
    may_lie: bool = False
    """Whether some summers lie: then two of them may have signed a wrong result."""
    lies: set[tuple[int, int]] = field(default_factory=set)
    """Rounds and ranges of which a wrong result was applied."""

    def counts(self, commit: Commit, place: int, sent: Sequence[int]) -> None:
        """A replica counts the payload of a commit's entry, which holds these positions."""
        entry, round = commit.entries[place], commit.round
        positions = self.trained.get((entry.author, round), ())
        recorded = self._recorded(round, place)
        require(
            list(positions) == recorded,
            f"the record of round {round} names the samples {recorded} of {entry.author}, which "
            f"trained {positions}",
        )
        expected = () if (entry.author, round) in self.silent else sorted(positions)
        require(
            list(sent) == list(expected),
            f"the payload of {entry.author} in round {round} holds {sent}, it trained {positions}",
        )

    def made(self, payload: bytes, shape: PayloadShape) -> None:
        """An author made a payload, which it may cut into any number of parts."""
        for count in range(1, shape.chunks + 1):
            parts = list_of(cut(payload, shape, count))
            self.roots[parts.root] = payload, parts

    def payload_behind(self, root: Digest) -> bytes:
        """The payload that a root names."""
        require(root in self.roots, "a root that no author made:", root.hex()[:8])
        return self.roots[root][0]

    def decided(self, peer: PeerId, commit: Commit) -> Commit:
        """The commit that a replica applies, as the journal has it: with authors beside sums."""
        found = self.commit_of(commit.round)
        is_decided = found is not None and commit_digest(commit) == commit_digest(found)
        require(is_decided, peer, "applies another commit in round", commit.round)
        assert found is not None, "required above"
        return found

    def sums(self, commit: Commit, result: RangeSum, blob: bytes, spec: AlgorithmSpec) -> None:
        """A replica applies the result of a range: it is what adding again gives."""
        place = commit.round, result.number
        if place not in self.expected:
            self.expected[place] = added_again(commit, result, spec, self.payload_behind)
        if blob != self.expected[place]:
            self.lies.add(place)
            require(self.may_lie, "round", commit.round, "has a wrong result of range", place[1])

    def holds_parts(
        self, peer: PeerId, root: Digest, ranges: Iterable[int], kept: set[bytes]
    ) -> None:
        """A node says that it holds parts of a payload."""
        if root in self.roots:  # else a hostile author's
            names = self.roots[root][1].names
            self.offers(peer, (names[number].digest for number in ranges), kept)

    def reports_parts(
        self, peer: PeerId, payload: int, ranges: Sequence[int], kept: set[bytes]
    ) -> None:
        """A node says so to the coordinator, and names the payload as receipts do."""
        if payload in self.receipts:
            self.holds_parts(peer, self.receipts[payload], ranges, kept)

    def _recorded(self, round: int, place: int) -> list[int]:
        shares = self.trained_of(round)[place]
        return [each for share in shares for each in range(share.first, share.end)]

    def follows(
        self, peer: PeerId, round: int, head: Digest, run_id: RunId, *, digest: int
    ) -> None:
        """A replica whose last commit has the digest `head`, and whose state has `digest`, applies
        the commit of a round. Behind a restart the state is that of the checkpoint.
        """
        before = self.commit_before(round)
        if before and (restart := self.restart_after(before.round)):
            require(digest == restart.state_digest, peer, "is not at the checkpoint before", round)
            return
        expected = commit_digest(before) if before else genesis_digest(run_id)
        require(head == expected, peer, "applies out of order: round", round)

    def passes_over(self, peer: PeerId, round: int, needed: Needed) -> None:
        """A replica makes a step without a payload or result: nobody has it."""
        require(self.is_void(round, needed.digest), peer, "leaves out a payload of round", round)

    def applied(
        self, peer: PeerId, commit: Commit, digest: int, voids: int, *, faulty: bool
    ) -> None:
        """A replica makes a step."""
        self.decided(peer, commit)
        if not faulty:
            known = self.digests.setdefault((commit.round, voids), digest)
            require(
                known == digest,
                "round",
                commit.round,
                "has two digests:",
                peer,
                "and the first to apply it",
            )

    def weighs(
        self,
        entry: Entry,
        round: int,
        algorithm: AlgorithmSpec,
        top_k: int,
        coefficients: Coefficients,
    ) -> None:
        """A replica counts what an author moved."""
        work, scales = self.works[entry.author, round], coefficients.scales
        require(
            entry.weight == entry.samples == work.samples,
            f"round {round} weighs {entry.author} by {entry.weight} samples, expected",
            work.samples,
        )
        said = set() if scales is None else set(scales[coefficients.counts > 0].tolist())
        require(
            said <= {work.code_max(algorithm, top_k)},
            f"round {round} has scales {said} of {entry.author}, which trained {work}",
        )

    def adopted(self, peer: PeerId, round: int, digest: int) -> int:
        """A replica goes on from a snapshot. Returns the number of voids that it passed over."""
        known = [
            voids
            for (applied, voids), found in self.digests.items()
            if (applied, found) == (round, digest)
        ]
        require(
            bool(known),
            peer,
            "adopts a snapshot of round",
            round,
            "that no node has that applied it",
        )
        return max(known)

    def restart_after(self, round: int) -> Restart | None:
        """The newest restart behind the commit of a round, and in front of the next."""
        restarts = [each for each in self.chain() if isinstance(each, Restart)]
        return next((each for each in reversed(restarts) if each.round == round), None)

    def passed_by(self, digest: int) -> set[int]:
        """Numbers of voids and restarts that a state with this digest, of a checkpoint, may have
        passed over.
        """
        return {
            number
            for number, each in enumerate(self.chain(), 1)
            if isinstance(each, Restart) and each.state_digest == digest
        }

    def announces(self, peer: PeerId, round: int, digest: bytes) -> None:
        """A node announces its work of a round."""
        require(
            0 <= round <= self.opened_until(),
            peer,
            "announces round",
            round,
            "which was not opened",
        )
        if digest:
            self.payloads[Digest(digest)] = round
            self.receipts[receipt_name(peer, Digest(digest))] = Digest(digest)

    def offers(self, peer: PeerId, digests: Iterable[bytes], kept: set[bytes]) -> None:
        """A node says that it holds payloads; `kept` are those that its disk has had, whole."""
        for digest in digests:
            require(digest in kept, peer, "offers", digest.hex()[:8], "which it has not verified")

    def judge_parameters(self, applied: Sequence[int], commits: Iterable[Commit]) -> None:
        """The samples in the parameters are those that these commits count."""
        counted = {
            position
            for commit in commits
            for place, entry in enumerate(commit.entries)
            if not self.is_void(commit.round, entry.digest)
            and (entry.author, commit.round) not in self.silent
            for position in self._recorded(commit.round, place)
        }
        missing, further = counted.difference(applied), set(applied) - counted
        require(not missing, "samples", sorted(missing), "count, and are in no parameters")
        require(not further, "samples", sorted(further), "are in the parameters and do not count")
