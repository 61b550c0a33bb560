"""The invariants of a run's state, stated in one place.

The state keeps several sets twice, so that each question costs the same with a thousand members as
with two. `validate` compares them, and checks that the counters add up. Tests and the simulation
call it after each event; it costs time in proportion to the state.
"""

from collections.abc import Collection
from typing import Any

from coordinator.machine.state.member import MembershipState
from coordinator.machine.state.receipts import Receipts
from coordinator.machine.state.records import DIFFERENCES_MAX, RECORDS_MAX
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.sums.relays import OFFERS_MAX, AddingRelays
from coordinator.machine.state.sums.round_sums import ASKED_MAX, RoundSums
from coordinator.machine.state.undecided_round import UndecidedRound
from coordinator.machine.state.verdicts import AUDITORS_MAX, DigestVerdicts
from coordinator.machine.state.votes import ROUNDS_KEPT, DigestReports, DigestTally
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId
from protocol.runfile import MembershipSpec, RunSpec
from protocol.shuffle import DataOrder
from protocol.sums.receipts import receipt_name


def validate(state: RunState, spec: RunSpec) -> None:
    """Raise `LocalProtocolError`, which names the broken invariant, unless all of them hold."""
    _rounds(state, spec)
    _members(state.members, spec.membership, state.head_round)
    for undecided in state.undecided:
        _undecided_round(undecided, state.members.roster, state.relays)
    _relays(state.relays, state.members.roster)
    _order(state.order)
    _samples(state)
    _verdicts(state.verdicts, state.members.roster)


def _undecided_round(
    undecided: UndecidedRound, roster: Collection[PeerId], relays: AddingRelays
) -> None:
    where, asked = f"round {undecided.round}", undecided.assignments.keys()
    announced, receipts = undecided.announced, undecided.receipts
    _subset(f"{where}: announced", announced.keys(), "the assignments", asked)
    _equal(f"{where}: silent", undecided.silent, asked - announced.keys())
    _equal(f"{where}: announced_ms", undecided.announced_ms.keys(), announced.keys())
    _subset(f"{where}: silent", undecided.silent, "the members", roster)
    known = {*roster, *receipts.auditors}
    _subset(f"{where}: named", receipts.named.keys(), "members and auditors", known)
    payloads: dict[Digest, set[PeerId]] = {}
    for peer, said in announced.items():
        leased = sum(share.count for share in undecided.assignments[peer].shares)
        _require(said.samples <= leased, f"{where}: {peer} trained {said.samples} of {leased}")
        if said.digest:
            payloads.setdefault(Digest(said.digest), set()).add(peer)
    authors = {digest: set(peers) for digest, peers in receipts.authors.items()}
    _equal(f"{where}: authors", authors, payloads)
    _receipts(where, receipts)
    if undecided.sums:
        _sums(where, undecided.sums, {*roster, *relays.here()})
        named = {
            receipt_name(author, root): author for root in payloads for author in payloads[root]
        }
        _equal(f"{where}: authors of parts", undecided.sums.parts.authors, named)


def _receipts(where: str, receipts: Receipts) -> None:
    holders: dict[Digest, set[PeerId]] = {}
    for peer, digests in receipts.named.items():
        _require(
            len(digests) <= receipts.named_max,
            f"{where}: {peer} names {len(digests)} digests of at most {receipts.named_max}",
        )
        for digest in digests:
            holders.setdefault(digest, set()).add(peer)
    _equal(f"{where}: holders", receipts.holders, holders)
    for peer, digests in receipts.doubted.items():
        named = receipts.named.get(peer, set())
        _subset(f"{where}: doubted of {peer}", digests, "the named ones", named)
    authors = {peer: digest for digest, peers in receipts.authors.items() for peer in peers}
    short = {
        peer
        for peer, digest in authors.items()
        if receipts.copies(digest, peer) < receipts.needed(peer)
    }
    _equal(f"{where}: copying", receipts.copying.keys(), authors.keys())
    for peer, digest in authors.items():
        holding = receipts.holding(digest)
        copying = {other for other in holding if receipts.is_copy(other, digest, peer)}
        _equal(f"{where}: copies of {peer}", receipts.copying[peer], copying)
    _equal(f"{where}: short", receipts.short, short)
    _subset(f"{where}: copied_ms", receipts.copied_ms.keys(), "the authors", authors.keys())
    _subset(f"{where}: copied", authors.keys() - short, "copied_ms", receipts.copied_ms.keys())


def _relays(relays: AddingRelays, roster: Collection[PeerId]) -> None:
    _require(len(relays.known) <= OFFERS_MAX, f"{len(relays.known)} relays of {OFFERS_MAX}")
    both = sorted({*relays.here()} & {*roster})
    _require(not both, f"members that add as relays: {both}")


def _sums(where: str, sums: RoundSums, present: Collection[PeerId]) -> None:
    parts = sums.parts
    _subset(f"{where}: summers", parts.adds.keys(), "members and relays", present)
    _subset(f"{where}: parts", parts.named.keys(), "the summers", parts.adds.keys())
    for peer, named in parts.named.items():
        count = len(named)
        _require(count <= parts.names_max, f"{where}: {peer} names {count} of {parts.names_max}")
    for author, copies in parts.copies.items():
        once = twice = 0
        for bits in (parts.bits(peer, author) for peer in {*parts.named, author}):
            once, twice = once | bits, twice | once & bits
        _equal(f"{where}: parts of {author}", (copies.once, copies.twice), (once, twice))
    for number, asked in enumerate(sums.asked):
        adds = {peer for peer, ranges in parts.adds.items() if ranges >> number & 1}
        _equal(f"{where}: summers of range {number}", adds, set(sums.living(number)))
        _require(len(asked) <= ASKED_MAX, f"{where}: {len(asked)} asked for range {number}")
        for each in sums.adding.by_range[number].signed if sums.adding else ():
            _require(each.peer in asked, f"{where}: {each.peer} signed unasked")
    whole = parts.copies.keys() - sums.short
    _subset(f"{where}: whole", whole, "whole_ms", sums.whole_ms.keys())
    _require(sums.adding is None or not sums.due_ms, f"{where}: parts are due while it is added")
    _require(not sums.vacant, f"{where}: others were not asked in the place of those that went")


def _rounds(state: RunState, spec: RunSpec) -> None:
    totals, end = state.totals, state.end
    rounds = [undecided.round for undecided in state.undecided]
    _equal("undecided", rounds, list(range(state.decided_round + 1, state.next_round)))
    _equal("committed + skipped", totals.committed + totals.skipped, state.decided_round + 1)
    _require(state.head_round <= state.decided_round, f"head_round {state.head_round} is undecided")
    _equal("a first commit", totals.committed > 0, state.head_round >= 0)
    _require(len(rounds) <= spec.rounds.overlap + 1, f"{len(rounds)} rounds are undecided")
    planned = totals.committed + len(rounds)
    steps = state.schedule(spec).steps
    _require(planned <= steps, f"{planned} steps of {steps}")
    ended = bool(state.operator.ends(totals.committed)) and not rounds
    due = totals.committed >= steps
    waits = state.consensus.apart and not due and not end.finished  # for a last mean, it may be
    _equal("finished", end.finished, (ended or due) and not waits)
    _require(end.finished or not end.concluded, "concluded before it is finished")


def _samples(state: RunState) -> None:
    totals, order = state.totals, state.order
    unused = sum(share.count for share in order.returned)
    leased = sum(undecided.leased() for undecided in state.undecided)
    found = totals.samples_counted + totals.samples_lost + unused + leased
    _equal("samples trained, lost, returned and leased", found, order.next_position)


def _order(order: DataOrder) -> None:
    end = -1
    for share in order.returned:
        _require(share.count > 0 and share.first > end, f"returned shares touch at {share}")
        end = share.end
    _require(end <= order.next_position, f"position {end - 1} returned before it was leased")


def _members(members: MembershipState, spec: MembershipSpec, head_round: int) -> None:
    roster = members.roster
    _require(len(roster) <= spec.members_max, f"{len(roster)} members")
    both = roster.keys() & members.lapsed_ms.keys()
    _require(not both, f"members that have lapsed: {sorted(both)}")
    for peer, member in roster.items():
        _equal("a member's id", member.peer, peer)
        _require(0 <= member.strikes <= spec.strikes_to_mute, f"{peer}: {member.strikes} strikes")
        _require(member.round <= head_round, f"{peer}: round {member.round} is ahead of the log")


def _verdicts(verdicts: DigestVerdicts, roster: Collection[PeerId]) -> None:
    _subset("held", verdicts.held.keys(), "the members", roster)
    _require(len(verdicts.records) <= RECORDS_MAX, f"{len(verdicts.records)} records")
    for peer, record in verdicts.records.items():
        _require(record.asked <= verdicts.requests, f"{peer}: request {record.asked} is not made")
        _require(0 <= record.differed < DIFFERENCES_MAX, f"{peer}: {record.differed} differences")
    _require(len(verdicts.auditors) <= AUDITORS_MAX, f"{len(verdicts.auditors)} auditors")
    _equal("contradiction", verdicts.contradiction, verdicts.tally.contradiction)
    _tally(verdicts.tally)
    for round, reports in verdicts.tally.by_round.items():
        where = f"words of round {round}"
        _subset(where, reports.words.keys(), "the auditors", verdicts.auditors)
        if reports.words and not verdicts.contradiction:
            _equal(where, {reports.verdict}, {digest for digest, _ in reports.words.values()})
        _require(not (reports.ruled and reports.provisional), f"{where}: ruled and provisional")


def _tally(tally: DigestTally) -> None:
    rounds = tally.by_round.keys()
    _equal("newest", tally.newest, max(rounds, default=-1))
    _require(
        min(rounds, default=tally.newest) > tally.newest - ROUNDS_KEPT,
        f"reports of round {min(rounds, default=-1)} are kept",
    )
    _require(tally.rounds_disputed <= tally.rounds_checked, "a round is disputed, not checked")
    for round, reports in tally.by_round.items():
        _reports(f"digests of round {round}", reports)


def _reports(where: str, reports: DigestReports) -> None:
    expected = reports.voters | reports.before.keys()
    _subset(f"{where}: awaited", reports.awaited, "voters and replaying nodes", expected)
    both = reports.awaited & reports.by_peer.keys()
    _require(not both, f"{where}: {sorted(both)} are awaited and have reported")
    _require(not reports.final or not reports.provisional, f"{where}: final and provisional")
    _require(not reports.final or reports.verdict is not None, f"{where}: final without verdict")
    _require(not reports.before or reports.verdict is None, f"{where}: a verdict in a replay")
    _require(reports.dissent <= reports.reported, f"{where}: {reports.dissent} dissent")


def _subset(name: str, part: Collection[Any], of: str, whole: Collection[Any]) -> None:
    outside = sorted(set(part) - set(whole))
    _require(not outside, f"{name}: {outside} are not among {of}")


def _equal(name: str, found: object, expected: object) -> None:
    _require(found == expected, f"{name}: expected {expected}, got {found}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise LocalProtocolError(f"broken invariant: {message}")
