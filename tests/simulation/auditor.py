"""The judge of the nodes. It sees each change of a node's state and each message, and it knows the
coordinator's journal.

Its rules:
- a node applies exactly the commits of the journal, in order, without the payloads that the
  journal calls void and with all others, and no other node has another digest after the same
  commit and the same voids;
- a node announces only rounds that were opened, and offers and confirms only payloads that are on
  its disk, verified;
- a kill takes from a node only what its disk did not have; what its disk had comes back;
- at every instant each sample that a node has trained is in its momentum, in an undecided payload,
  or in its parameters;
- with local steps, a commit weighs an author by the samples that it trained in the round, and the
  author's scale says the same;
- the samples that the record of a commit names are those that its authors trained;
- in the end each gradient that was announced in time is in the parameters, or in the momentum of
  one node, or was lost by a fault that takes it (a lost disk, a save that is not made every round,
  a payload that became void because all who had it lost it); none is in two places. Only a machine
  that computed wrong is excused from this.

A position that was left out is trained again, by whoever it is leased to: that makes another
gradient, which has a number of its own. That no position is counted twice is judged by the books of
the coordinator's referee (`tests.simulation.checkers`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from protocol.codec.chain import Restart, Void
from protocol.codec.commits import Commit, Entry, commit_digest, genesis_digest
from protocol.codec.payload import Coefficients
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share
from tests.simulation.checkers import require
from tests.simulation.movements import Work

FURTHER = 8192
"""The first number of a gradient of a position that was trained before; above all positions."""


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
    excused: set[int] = field(default_factory=set)
    """Gradients that may be anywhere, and more than once."""
    lost: set[int] = field(default_factory=set)
    """Gradients that a fault has taken: they may be nowhere."""
    gradients: dict[int, tuple[PeerId, int]] = field(default_factory=dict)
    """By number: whose gradient it is, and of which position."""
    trained: dict[tuple[PeerId, int], tuple[int, ...]] = field(default_factory=dict)
    """The positions that an author trained for its payload of a round."""
    sent: dict[tuple[PeerId, int], tuple[int, ...]] = field(default_factory=dict)
    """The gradients in the committed payloads, by author and round."""
    works: dict[tuple[PeerId, int], Work] = field(default_factory=dict)
    """With local steps: what each author trained in a round."""
    payloads: dict[Digest, int] = field(default_factory=dict)
    """The round of every payload that was ever announced."""
    _next: int = FURTHER
    """Number of the next gradient of a position that was trained before."""

    def train(self, peer: PeerId, positions: Sequence[int]) -> list[int]:
        """A node trains; returns the numbers of the gradients: of the first one of a position that
        position, of a further one a number that no position has.
        """
        numbers = []
        for position in positions:
            require(position < FURTHER, "position", position, "has the number of a gradient")
            number = position
            if position in self.gradients:
                number, self._next = self._next, self._next + 1
            self.gradients[number] = (peer, position)
            numbers.append(number)
        return numbers

    def counts(self, commit: Commit, place: int) -> None:
        """A replica counts the payload of a commit's entry."""
        entry, round = commit.entries[place], commit.round
        positions = self.trained.get((entry.author, round))
        recorded = [
            each
            for share in self.trained_of(round)[place]
            for each in range(share.first, share.end)
        ]
        require(
            list(positions or ()) == recorded,
            f"the record of round {round} names the samples {recorded} of {entry.author}, which "
            f"trained {positions}",
        )

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

    def passes_over(self, peer: PeerId, round: int, entry: Entry) -> None:
        """A replica makes a step without a payload: nobody has it, its author neither."""
        require(self.is_void(round, entry.digest), peer, "leaves out a payload of round", round)
        self.lose(self.sent.get((entry.author, round), ()))

    def applied(
        self, peer: PeerId, commit: Commit, digest: int, voids: int, *, faulty: bool
    ) -> None:
        """A replica makes a step."""
        require(
            commit == self.commit_of(commit.round),
            peer,
            "applies another commit in round",
            commit.round,
        )
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

    def offers(self, peer: PeerId, digests: Iterable[bytes], kept: set[bytes]) -> None:
        """A node says that it holds payloads; `kept` are those that its disk has had, whole."""
        for digest in digests:
            require(digest in kept, peer, "offers", digest.hex()[:8], "which it has not verified")

    def excuse(self, gradients: Iterable[int]) -> None:
        """These may be anywhere: a fault is at work."""
        self.excused.update(gradients)

    def lose(self, gradients: Iterable[int]) -> None:
        """A fault takes these from their place."""
        self.lost.update(gradients)

    def judge_node(self, peer: PeerId, trained: set[int], places: set[int]) -> None:
        """Each gradient that a node has taken, or found in its state, is in one of its places."""
        missing = sorted(trained - places - self.excused - self.lost)
        require(
            not missing, f"gradients {missing} that {peer} has taken are nowhere at this instant"
        )

    def judge_gradients(
        self,
        applied: list[int],
        momenta: dict[PeerId, list[int]],
        elsewhere: set[int],
        announced: Counter[tuple[PeerId, int]],
    ) -> None:
        """Each gradient is in one place, and every one that was announced is somewhere: there, or
        in commits that these parameters lack.
        """
        places: dict[int, str] = dict.fromkeys(applied, "the parameters")
        for peer, numbers in momenta.items():
            for number in numbers:
                require(
                    number not in places or number in self.excused,
                    f"gradient {number} is in {places.get(number)} and with {peer}",
                )
                places[number] = f"the momentum of {peer}"
        accounted = self.excused | self.lost | elsewhere | places.keys()
        found = Counter(self.gradients[each] for each in accounted & self.gradients.keys())
        missing = sorted(announced - found)
        require(not missing, "gradients of", missing, "are in no parameters and no momentum")
