"""Judges of a history. They know the rules of DESIGN.md and nothing of the code that they judge.

`Referee` watches one coordinator: it is given each event with the machine's effects, keeps its own
simple book (sets of positions, sets of holders) and raises `Violation` when a promise is broken.
`portrait` is a machine's whole state as plain values, to compare two machines.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from coordinator.machine.events.acts import Appoint, Ordered
from coordinator.machine.events.effects import (
    Admit,
    AskResync,
    Chained,
    CommitRound,
    Effect,
    Evict,
    FinishRun,
    OpenRound,
    SkipRound,
    SummerAdded,
    SumsAsked,
)
from coordinator.machine.events.inputs import (
    Announced,
    Event,
    Holding,
    InstantReached,
    Lapsed,
    Left,
    NotHeld,
    OfferEnded,
    PartsHeld,
    Summed,
    SumsOffered,
)
from coordinator.machine.machine import RunMachine
from lockstep.audit.sums.authors import flaw_of_authors
from protocol.codec.chain import Reschedule, Restart, Void, entry_digest
from protocol.codec.commit_sums import Sums
from protocol.codec.commits import Commit, check_link, commit_digest, genesis_digest
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share
from protocol.sums.receipts import receipt_name
from tests.simulation.orders import Orders


class Violation(AssertionError):  # noqa: N818 (a finding)
    """A promise was broken."""


def require(holds: bool, *what: object) -> None:
    """Raise `Violation` with the facts unless the promise holds."""
    if not holds:
        raise Violation(" ".join(str(part) for part in what))


@dataclass
class _Page:
    """The referee's book of one undecided round."""

    asked: dict[PeerId, list[int]]
    muted: set[PeerId]
    announced: dict[PeerId, Announced] = field(default_factory=dict)
    holders: dict[bytes, set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    late: bool = False
    summers: list[set[PeerId]] = field(default_factory=list)
    """Those that were asked for each range."""
    parts: dict[tuple[int, int], set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    """Who said to hold the part of a payload in a range."""
    signed: dict[tuple[int, bytes], set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    """Who signed a result of a range."""


class Referee:
    """Judges the safety of one coordinator, event by event, also over its restarts."""

    def __init__(self, machine: RunMachine) -> None:
        self.machine = machine
        self.commits: list[Commit] = []
        self.words: dict[int, str] = {}
        self.voids: dict[tuple[int, Digest], Void] = {}
        self.orders = Orders(machine.spec)
        self.chain: list[Void | Restart] = []
        """What a state passes over, in order."""
        self._head = genesis_digest(machine.run_id)
        self._lacked: dict[tuple[int, Digest], set[PeerId]] = defaultdict(set)
        self._run_id, self._spec = machine.run_id, machine.spec
        self._pages: dict[int, _Page] = {}
        self._live: set[PeerId] = set()
        self._relays: set[PeerId] = set()
        """Those that offer to add: no members."""
        self._auditors: set[PeerId] = set()
        """Keys that were named auditors at some time: no members, and they may hold payloads."""
        self._counted: set[int] = set()
        """Positions in payloads that commits count."""
        self._parts: dict[tuple[int, Digest], set[int]] = defaultdict(set)
        """The positions in each of these payloads."""
        self._lost: set[int] = set()
        self._returned: set[int] = set()
        self._next_position = 0
        self._finished = False

    def saw(self, event: Event, effects: Iterable[Effect], *, judge_books: bool = True) -> None:
        """The machine took `event` and returned `effects`. When it took several events at once, its
        books can be compared only after the last one.
        """
        self._take(event)
        for effect in effects:
            match effect:
                case Admit(peer):
                    require(peer not in self.orders.banned, peer, "is banned and admitted")
                    self._live.add(peer)
                    self._relays.discard(peer)
                case OpenRound():
                    self._opened(effect)
                case SummerAdded(round, number, peer):
                    require(self._adds(peer), peer, "is asked to add and is not here")
                    self._pages[round].summers[number].add(peer)
                case SumsAsked(_, questions):
                    self._pages[questions[0].round].late = True  # its authors are fixed
                case CommitRound():
                    self._committed(effect)
                case Chained(Void() as void):
                    self._voided(void)
                case Chained(Reschedule() as entry):
                    require(entry.previous == self._head, "does not follow the chain:", entry)
                    self._head, self._finished = entry_digest(entry), False
                    self.orders.schedules.append(entry)
                case Chained(Restart() as restart):
                    require(restart.previous == self._head, "does not follow the chain:", restart)
                    require(not self._pages, "rounds are open behind", restart)
                    self._head = entry_digest(restart)
                    self.chain.append(restart)
                case SkipRound(round, reason):
                    require(bool(reason), "round", round, "was skipped without a reason")
                    self._decided(round, "skipped")
                case AskResync(peer):
                    self._withdrawn(peer)
                case Evict(peer):
                    self._went(peer)
                case FinishRun():
                    require(
                        len(self.commits) == self.orders.schedule.steps or self.orders.ends,
                        "finished after",
                        len(self.commits),
                    )
                    self._finished = True
        if judge_books:
            self.check_books()

    # ---- events

    def _take(self, event: Event) -> None:
        self.orders.take(event)
        match event:
            case Left(peer) | Lapsed(peer):
                self._went(peer)
            case SumsOffered(peer) if peer not in self._live:
                self._relays.add(peer)
            case OfferEnded(peer):
                self._relays.discard(peer)
            case InstantReached(round, "publish_by" | "commit_by") if round in self._pages:
                self._pages[round].late = True
            case Ordered(Appoint(peer)):
                self._auditors.add(PeerId(peer))
            case Holding(peer, round, digests) if round in self._pages and (
                peer in self._live | self._auditors
            ):
                for digest in digests:
                    self._pages[round].holders[digest].add(peer)
            case PartsHeld(peer, round, held) if round in self._pages and self._adds(peer):
                page = self._pages[round]
                for said in held:
                    for number, summers in enumerate(page.summers):
                        if peer in summers and said.ranges >> number & 1:
                            page.parts[said.payload, number].add(peer)
            case Summed() if event.round in self._pages and self._adds(event.peer):
                page = self._pages[event.round]
                if event.number < len(page.summers) and event.peer in page.summers[event.number]:
                    page.signed[event.number, event.digest].add(event.peer)
            case NotHeld(peer, round, digests) if peer in self._live:
                for digest in digests:
                    self._lacked[round, digest].add(peer)
            case Announced() if event.round in self._pages and event.peer in self._live:
                self._announced(event, self._pages[event.round])

    def _adds(self, peer: PeerId) -> bool:
        """Whether the node is a member, or a relay that offers to add."""
        return peer in self._live | self._relays

    def _went(self, peer: PeerId) -> None:
        self._live.discard(peer)
        self._withdrawn(peer)
        for page in self._pages.values():
            for holders in page.holders.values():
                holders.discard(peer)

    def _withdrawn(self, peer: PeerId) -> None:
        """The samples that the peer has not announced are left out."""
        for page in self._pages.values():
            if peer not in page.announced:
                self._left_out(page.asked.pop(peer, ()))

    def _left_out(self, positions: Iterable[int]) -> None:
        """They come back, except where nodes mix parameters: their node may have them."""
        (self._returned if self._spec.algorithm.facts.replicas_equal else self._lost).update(
            positions
        )

    def _announced(self, event: Announced, page: _Page) -> None:
        if event.peer not in page.asked:
            return
        earlier = page.announced.get(event.peer)
        if earlier is None and not page.late:
            positions = page.asked[event.peer]
            page.asked[event.peer] = positions[: event.samples]
            self._returned.update(positions[event.samples :])
            page.announced[event.peer] = earlier = event
        if earlier and earlier.digest == event.digest and event.digest:
            page.holders[event.digest].add(event.peer)

    # ---- effects

    def _opened(self, opened: OpenRound) -> None:
        if opened.round in self._pages:
            require(
                len(opened.assignments) == 1,
                "round",
                opened.round,
                "was opened again for more than one member",
            )
            return
        require(not self._finished, "round", opened.round, "opens after the end")
        require(not self.orders.closed, "round", opened.round, "opens while", self.orders.closed)
        require(
            opened.round == len(self.words) + len(self._pages),
            "round",
            opened.round,
            "opens out of turn",
        )
        page = _Page({}, set(), summers=[set(peers) for peers in opened.plan])
        for assignment in opened.assignments:
            require(
                assignment.peer in self._live, assignment.peer, "is asked to work and is no member"
            )
            page.asked[assignment.peer] = [
                position
                for share in assignment.shares
                for position in self._leased(opened.round, share)
            ]
            require(len(page.asked[assignment.peer]) >= 1, assignment.peer, "is asked for nothing")
            if assignment.muted:
                page.muted.add(assignment.peer)
        samples = sum(map(len, page.asked.values()))
        samples_max = max(self._spec.rounds.batch_samples_max, len(page.asked))
        require(
            samples <= samples_max,
            "round",
            opened.round,
            "leases",
            samples,
            "of at most",
            samples_max,
        )
        counting = len(page.asked) - len(page.muted)
        require(
            counting >= self._spec.rounds.quorum,
            "round",
            opened.round,
            "can have",
            counting,
            "contributors",
        )
        self._pages[opened.round] = page

    def _leased(self, round: int, share: Share) -> range:
        positions = range(share.first, share.first + share.count)
        for position in positions:
            if position in self._returned:
                self._returned.discard(position)
            else:
                require(
                    position == self._next_position,
                    "round",
                    round,
                    "leases",
                    position,
                    "out of turn",
                )
                self._next_position += 1
        return positions

    def _committed(self, effect: CommitRound) -> None:
        commit = effect.commit
        previous = self.commits[-1] if self.commits else None
        check_link(commit, self._run_id, self._head, previous.round if previous else -1)
        self._head = commit_digest(commit)
        require(commit.step == len(self.commits), "round", commit.round, "makes step", commit.step)
        rates = commit.learning_rate_bits, commit.decay_bits
        require(rates == self.orders.rates(commit.step), commit, "has not the schedule's rate")
        authors = [entry.author for entry in commit.entries]
        require(authors == sorted(set(authors)), "round", commit.round, "names authors", authors)
        require(
            len(authors) >= self._spec.rounds.quorum,
            "round",
            commit.round,
            "is below the quorum",
            authors,
        )
        page = self._pages[commit.round]
        for entry in commit.entries:
            announced = page.announced.get(entry.author)
            require(
                announced is not None,
                "round",
                commit.round,
                entry.author,
                "did not announce in time",
            )
            assert announced is not None
            said = (announced.digest, announced.payload_bytes, announced.samples)
            require(
                said == (entry.digest, entry.payload_bytes, entry.samples),
                entry,
                "is not what was said",
                said,
            )
            require(entry.author not in page.muted, "round", commit.round, entry.author, "is muted")
        if commit.sums:
            self._judge_sums(effect, commit.sums, page)
        else:
            self._judge_copies(effect, page)
        self._judge_mix(commit, page)
        self._count(effect, page)
        self.commits.append(commit)
        self._decided(commit.round, "committed", authors)

    def _judge_copies(self, effect: CommitRound, page: _Page) -> None:
        """Enough others said that they hold each payload."""
        commit = effect.commit
        for entry, told in zip(commit.entries, effect.holders, strict=True):
            holders = page.holders[entry.digest]
            others = (self._live & page.asked.keys()) - {entry.author}
            mixes = not self._spec.algorithm.facts.replicas_equal
            copies = 0 if mixes else min(self._spec.rounds.copies_min, len(others))
            require(
                len(holders - {entry.author}) >= copies,
                "round",
                commit.round,
                entry,
                "is held by",
                holders,
            )
            require(bool(holders), "round", commit.round, entry, "is held by nobody")
            require(
                set(told) <= holders, "round", commit.round, "tells holders", told, "of", holders
            )

    def _judge_sums(self, effect: CommitRound, sums: Sums, page: _Page) -> None:
        """Two that were asked signed each result; of each author that it counts a summer holds the
        part; and each entry is counted in half of the ranges, as far as these have a result.
        """
        commit = effect.commit
        require(sums.ranges == len(page.summers), "round", commit.round, "has other ranges")
        require(bool(sums.results), "round", commit.round, "moves nothing")
        flaw = flaw_of_authors(commit, self._spec)
        require(not flaw, "round", commit.round, flaw)
        for result, told in zip(sums.results, effect.holders, strict=True):
            signers = page.signed[result.number, result.digest]
            require(len(signers) >= 2, "round", commit.round, result, "was signed by", signers)
            require(set(told) <= signers, "round", commit.round, "tells", told, "of", signers)
            summers = page.summers[result.number]
            for place, entry in enumerate(commit.entries):
                payload = receipt_name(entry.author, entry.digest)
                holders = page.parts[payload, result.number] | ({entry.author} & summers)
                require(
                    place in result.silent or bool(holders),
                    f"round {commit.round} counts a part of {entry.author} in range "
                    f"{result.number} that nobody holds",
                )
        lost = sums.ranges - len(sums.results)
        for place, entry in enumerate(commit.entries):
            silent = sum(place in result.silent for result in sums.results)
            require(
                2 * silent <= sums.ranges + lost,
                f"round {commit.round} counts {entry.author}, silent in {silent} ranges",
            )

    def _count(self, effect: CommitRound, page: _Page) -> None:
        """The parameters count what the authors trained, no position a second time."""
        commit = effect.commit
        for entry, shares in zip(commit.entries, effect.trained, strict=True):
            positions = page.asked[entry.author]
            said = [each for share in shares for each in range(share.first, share.end)]
            require(
                said == positions,
                f"round {commit.round}: {entry.author} trained {positions}, the record says {said}",
            )
            again = self._counted.intersection(positions)
            require(not again, "round", commit.round, "counts", sorted(again), "a second time")
            self._counted.update(positions)
            self._parts[commit.round, entry.digest].update(positions)

    def _judge_mix(self, commit: Commit, page: _Page) -> None:
        """Both ends of every committed edge said that they hold the other's payload, and shares are
        those of a doubly stochastic matrix.
        """
        require(
            (commit.mix is not None) is not self._spec.algorithm.facts.replicas_equal,
            commit,
            "mixes or not",
        )
        if commit.mix is None:
            return
        entries = commit.entries
        pairs = [(entries[first], entries[second]) for first, second, _ in commit.mix.edges]
        for ends in combinations(entries, 2) if commit.mix.mean else pairs:
            for holder, held in (ends, ends[::-1]):
                require(
                    holder.author in page.holders[held.digest],
                    "round",
                    commit.round,
                    holder.author,
                    "did not say that it holds the payload of",
                    held.author,
                )
        for entry in entries:
            taken = sum(commit.shares_of(each.author).get(entry.author, 0) for each in entries)
            require(taken == 1, "round", commit.round, "takes", taken, "of", entry.author)

    def _voided(self, void: Void) -> None:
        """A void is linked, is about a payload of a commit, is said once, and a member lacks it."""
        payload = void.round, void.digest
        require(void.previous == self._head, "a void that does not follow the chain:", void)
        require(payload not in self.voids, void, "is said a second time")
        named = [
            each.digest
            for commit in self.commits
            for each in commit.needed
            if commit.round == void.round
        ]
        require(void.digest in named, void, "is about a payload that no commit names")
        require(bool(self._lacked[payload] & self._live), void, "and no member lacks it")
        back = self._parts.pop(payload, set())  # none where a result is void
        self._counted -= back
        self._returned |= back
        self.voids[payload] = void
        self.chain.append(void)
        self._head = entry_digest(void)

    def _decided(self, round: int, word: str, authors: Collection[PeerId] = ()) -> None:
        require(
            round == len(self.words), "round", round, "is decided, expected round", len(self.words)
        )
        self.words[round] = word
        page = self._pages.pop(round)
        for peer, positions in page.asked.items():
            if not self._spec.algorithm.facts.replicas_equal and peer in page.announced:
                self._counted.update(positions)  # in its own parameters, whatever is committed
            elif peer not in authors:
                self._left_out(positions)

    # ---- the books

    def check_books(self) -> None:
        """The machine's members, undecided rounds and data order follow from its events."""
        machine, steps = self.machine, self.orders.schedule.steps
        flights = [flight.round for flight in machine.state.undecided]
        require(
            flights == sorted(self._pages), "in flight", flights, "expected", sorted(self._pages)
        )
        require(len(flights) <= self._spec.rounds.overlap + 1, "in flight", flights)
        require(
            len(self.commits) + len(flights) <= steps,
            "steps",
            len(self.commits),
            "and in flight",
            flights,
        )
        require(
            {member.peer for member in machine.members} == self._live,
            "members differ from",
            self._live,
        )
        out = {
            position
            for page in self._pages.values()
            for positions in page.asked.values()
            for position in positions
        }
        places = [self._counted, self._lost, self._returned, out]
        require(
            sum(map(len, places)) == self._next_position == len(set().union(*places)),
            "positions do not add up",
        )
        totals = machine.state.totals
        require(
            (totals.samples_counted, totals.samples_lost) == (len(self._counted), len(self._lost)),
            "trained and lost",
            totals,
        )
        require(
            machine.state.order.next_position == self._next_position,
            "next position",
            machine.state.order.next_position,
        )
        returned = [
            each for share in machine.state.order.returned for each in range(share.first, share.end)
        ]
        require(returned == sorted(self._returned), "returned positions", returned)


def portrait(machine: RunMachine, *, with_leases: bool = True) -> dict[str, Any]:
    """The machine's whole state as plain values. To compare with a replay, which has no heartbeats,
    leave out leases, the time, and the reason in words, which decides nothing.
    """
    fields = asdict(machine.state)
    fields["loss"] = repr(machine.state.loss)  # NaN is not equal to itself
    if not with_leases:
        del fields["last_ms"], fields["reason"]
        for member in fields["members"]["roster"].values():
            del member["lease_until_ms"]
        for relay in fields["relays"]["known"].values():
            del relay["lease_until_ms"]
    return fields
