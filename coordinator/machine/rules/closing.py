"""Closes rounds: when a round may close, whose payloads count, and who pays for a round that took
all its time.

Rules
- At `commit_by` a round closes, whatever is missing. Before its least length it does not.
- Nobody waits for a member at its strike limit; in a run that is open to the public nobody waits
  for a key without standing. But while the quorum is not reached without them, all live members are
  waited for until `publish_by`: a skipped round helps nobody.
- Once the quorum is reached, nobody waits for the copies of an author whose last payloads were not
  available.
- An announced payload that too few members could fetch in the whole round costs its author a
  strike.
- In a run that is open to the public nobody waits for a member that kept others waiting, round
  after round, longer than a quarter beyond the time in which two thirds were there: with its
  payload, and its copies. The time is counted by key, so joining again forgives nothing.
- In a run that is open to the public the quorum is one of members with standing, and there is at
  most one payload of a fresh key for two of theirs, but at least one.
"""

from collections.abc import Callable
from dataclasses import replace

from coordinator.machine.events.inputs import Announced
from coordinator.machine.rules import edges
from coordinator.machine.rules.pacing import next_pace
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.pace import Needs
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import ClosedEarly
from coordinator.machine.state.standing import PARTS
from coordinator.machine.state.undecided_round import UndecidedRound, mean_loss
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from protocol.words import quantity

LEAST_PART = 4
"""A round of a public run lasts at least this part of its compute time: two keys that agree with
each other would else make hundreds of steps in a second."""

SOON_PART = 4
"""Part of the time in which two thirds are there, or of a round's least length, within which all
the others are expected after it."""

JUDGED_MIN = 3
"""Members that decide, at least, of whom one can be late beside the others."""

FRESH_PART = 2
"""Payloads of keys with standing for each payload of a fresh one."""


def least_ms(spec: RunSpec) -> int:
    """The least length of a round; 0 where members know each other."""
    return spec.rounds.compute_ms // LEAST_PART if spec.membership.trust == "public" else 0


def fresh_max(standing: int) -> int:
    """The number of fresh keys' payloads that may be counted beside those of keys with standing."""
    return max(1, standing // FRESH_PART) if standing else 0


def waited_for(undecided: UndecidedRound, run: Run) -> Callable[[PeerId], bool]:
    """The members that the round waits for: those that keep time, or all live ones if none does."""
    keep_time = any(map(run.members.keeps_time, undecided.assignments))
    return run.members.keeps_time if keep_time else run.members.live


def may_close(undecided: UndecidedRound, run: Run) -> bool:
    """Whether the payloads that count may be fixed now: with them the round is decided, or summers
    add them.
    """
    members = run.members
    if undecided.reached == "commit_by":
        return True
    closed = undecided.reached == "publish_by"
    if undecided.least_ms or not (closed or not undecided.waits(waited_for(undecided, run))):
        return False
    roster, asked = members.roster, undecided.assignments
    if any(peer in roster for peer in asked) and not any(map(members.live, asked)):
        return False  # all sessions were lost at once: a fault of the network here
    enough = reaches_quorum(contributors(undecided, members), run)
    if not (enough or closed) and undecided.waits(members.live):
        return False
    if undecided.edges:
        return not edges.waits(undecided, members.live)
    copied = members.copies_are_awaited if enough else members.decides
    return not undecided.waits_for_copies(roster, copied)


def contributors(undecided: UndecidedRound, members: Membership) -> list[Announced]:
    """The payloads that count if the round is decided now, sorted by author. Members without a
    session are asked for copies too: a short loss of the network must not let a payload without
    copies pass.
    """
    available = undecided.available(members.roster)
    if undecided.mean:
        return edges.whole(undecided, available)
    fresh = [payload.peer for payload in available if not members.decides(payload.peer)]
    if not fresh:
        return available
    bound = fresh_max(len(available) - len(fresh))
    taken = set(members.standing.drawn_first(undecided.round, fresh)[:bound])
    return [
        payload for payload in available if payload.peer in taken or members.decides(payload.peer)
    ]


def reaches_quorum(counted: list[Announced], run: Run) -> bool:
    """Whether enough members that decide contribute."""
    return _deciding(counted, run.members) >= run.spec.rounds.quorum


def lack_of_quorum(counted: list[Announced], run: Run) -> str:
    """How many contributed to a round that is skipped, as it was judged, and how many must."""
    deciding, everybody = _deciding(counted, run.members), quantity(len(counted), "contributor")
    quorum = run.spec.rounds.quorum
    needed = "1 is needed" if quorum == 1 else f"{quorum} are needed"
    if deciding == len(counted):
        return f"{everybody}; {needed}"
    return f"{deciding} of {everybody} {'has' if deciding == 1 else 'have'} standing; {needed}"


def _deciding(counted: list[Announced], members: Membership) -> int:
    """The number of these authors whose word counts where the quorum is counted."""
    return sum(members.decides(payload.peer) for payload in counted)


def needs(undecided: UndecidedRound, members: Membership, now_ms: int) -> Needs:
    """The times that the pace follows: those of members that rounds wait for."""
    found = undecided.needs(members.keeps_time, members.copies_are_awaited, now_ms)
    if not (undecided.edges and found.publish_ms):
        return found
    if undecided.mean:
        return replace(found, publish_ms=())  # no measure of other rounds: the pace stays
    return replace(found, exchange_ms=tuple(edges.needed_ms(undecided, now_ms)))


def count(undecided: UndecidedRound, counted: list[Announced], run: Run) -> float:
    """These payloads are committed: count them. Returns the run's loss: the mean of what members
    that decide say of theirs.
    """
    state, members, totals = run.state, run.members, run.state.totals
    totals.committed += 1
    totals.payloads += len(counted)
    totals.payload_bytes += sum(payload.payload_bytes for payload in counted)
    if not undecided.only_mixes or state.loss is None:
        state.loss = mean_loss([payload for payload in counted if members.decides(payload.peer)])
    _credit(undecided, counted, members)
    return state.loss


def _credit(undecided: UndecidedRound, counted: list[Announced], members: Membership) -> None:
    """These payloads are committed. In a public run an author's speed is measured by the
    coordinator's clock alone, and only for what was delivered.
    """
    for payload in counted:
        if members.public:
            members.standing.credit(payload.peer)
        if member := members.get(payload.peer):
            member.work.rounds_counted += 1
            took_ms = _upload_ms(undecided, payload.peer)
            if took_ms is not None and not undecided.disturbed:
                member.work.book_upload(_sent_bytes(undecided, payload), took_ms)
            if members.public:
                took_ms = undecided.announced_ms[payload.peer] - undecided.instants.opened
                member.work.book(payload.samples, max(took_ms, payload.compute_ms))


def _upload_ms(undecided: UndecidedRound, author: PeerId) -> int | None:
    """Time from a payload's announcement until those held it that were waited for: its neighbours,
    where nodes mix parameters, summers where these add, else `copies_min` others. None where that
    is not known, and in a round of the mean, which sends many at once.
    """
    if undecided.mean:
        return None
    if undecided.edges:
        return edges.slowest_edge_ms(undecided, author)
    if not (undecided.receipts.copies_min or undecided.sums):
        return None
    copied_ms = undecided.copied_ms.get(author)
    return None if copied_ms is None else copied_ms - undecided.announced_ms[author]


def _sent_bytes(undecided: UndecidedRound, payload: Announced) -> int:
    """Bytes that an author has sent by then: one copy; to summers two of each part, without those
    of the ranges that it adds itself.
    """
    if undecided.sums is None:
        return payload.payload_bytes
    ranges, own = undecided.sums.ranges, undecided.sums.parts.adds.get(payload.peer, 0)
    return payload.payload_bytes * (2 * ranges - own.bit_count()) // ranges


def close(undecided: UndecidedRound, run: Run, now_ms: int) -> list[Announced]:
    """The round closes: set the pace of the next one by it, and judge its members. Returns the
    payloads that count.
    """
    state, rounds = run.state, run.spec.rounds
    state.pace = next_pace(
        state.pace, needs(undecided, run.members, now_ms), rounds, hides=rounds.hides
    )
    _judge(undecided, run)
    return contributors(undecided, run.members)


def _judge(undecided: UndecidedRound, run: Run) -> None:
    """Strike authors whose payloads could not be had, and remember the members that may still
    prove themselves punctual.
    """
    state, members = run.state, run.members
    decided_ms = undecided.instants.commit_by
    available = {payload.peer for payload in undecided.available(members.roster)}
    for payload in undecided.payloads():
        if payload.peer in available:
            members.note_copies(payload.peer, decided_ms, copied=True)
        elif undecided.reached == "commit_by" and not undecided.disturbed:
            members.note_copies(payload.peer, decided_ms, copied=False)
    for peer in filter(members.decides, undecided.assignments):
        confirms = members.public and undecided.sums is None
        if confirms and not undecided.disturbed and available - {peer}:
            members.note_receipts(peer, given=undecided.receipts.confirmed_by(peer))
    soon_ms, judged = _judge_pace(undecided, run)
    state.closed_early = [each for each in state.closed_early if each.publish_by_ms > state.last_ms]
    if undecided.reached in ("opened", "bell") and undecided.silent:
        publish_by_ms = undecided.instants.publish_by
        state.closed_early.append(
            ClosedEarly(undecided.round, publish_by_ms, set(undecided.silent), soon_ms, judged)
        )


def _two_thirds(instants_ms: list[int]) -> int:
    """The instant by which two thirds of them are over."""
    return sorted(instants_ms)[-(-2 * len(instants_ms) // 3) - 1]


def _judge_pace(undecided: UndecidedRound, run: Run) -> tuple[int, int]:
    """Note who kept a public round waiting long after most of those that decide, and how long. Who
    gives nobody its payloads is none of the most: else rounds would be as slow as the others wait.
    Returns the time until which a member came with them, and their number; zeros where nothing is
    judged.
    """
    members, now_ms = run.members, run.state.last_ms
    asked = sorted(filter(members.decides, undecided.assignments.keys() | undecided.gone_ms.keys()))
    if not members.public or undecided.disturbed or undecided.edges or len(asked) < JUDGED_MIN:
        return 0, 0
    opened_ms, copied_ms = undecided.instants.opened, undecided.copied_ms
    came_ms = undecided.gone_ms | undecided.announced_ms
    said_ms = {peer: came_ms.get(peer, members.awaited_until(peer, now_ms)) for peer in asked}
    there_ms = {
        peer: copied_ms.get(peer, now_ms) if undecided.has_payload(peer) else at_ms
        for peer, at_ms in said_ms.items()
    }
    giving = [peer for peer in asked if members.gives_copies(peer)]
    most_ms = _two_thirds([there_ms[peer] for peer in giving or asked]) - opened_ms
    most_ms = max(most_ms, undecided.shortest_ms, 1)
    soon_ms = opened_ms + most_ms + most_ms // SOON_PART
    for peer in asked:
        late = max(0, there_ms[peer] - soon_ms) * PARTS // most_ms
        if late or peer not in undecided.silent:
            members.standing.note_pace(peer, late, len(asked))
        if late and (member := members.get(peer)):
            member.work.copies_tardy = said_ms[peer] <= soon_ms
    return soon_ms, len(asked)
