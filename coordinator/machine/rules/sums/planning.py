"""The draw of the nodes that add the payloads of a round, as it opens.

Rules
- A round has summers when the run file wants them for as many authors, and the size of the model
  is known here (`protocol.planner.parameters`). Without two candidates every payload goes to
  everybody.
- Candidates are the members that decide, are in time, and that others can reach at an address, also
  those that train too slowly for a round to wait for them; and the relays that offer to add
  (`coordinator.machine.rules.sums.offering`).
- They add by their measured uplinks. One that is not measured yet counts as the least measured
  one. In a run that is open to the public nobody counts for more than `COUNTED_UPLINK` times the
  median, unless it was vouched for: who hears that a payload has arrived may say so too soon.
- A relay counts as the median of them, times how much quicker its content reaches others
  (`relay_uplinks`).
- Each round that a candidate has missed as a summer halves what it is given twice; each that it has
  not missed makes up for one halving. One has missed a round that did not sign in time, or signed
  another sum than the one that was settled: nobody is judged by that, but drawn less.
- A patience is a third of the time that the exchange has in the round's slot.
"""

from statistics import median_low
from typing import Final

from coordinator.machine.rules.sums.relay_uplinks import relay_uplinks
from coordinator.machine.state.member import Member
from coordinator.machine.state.run import Run
from coordinator.machine.state.sums.round_sums import RoundSums
from coordinator.machine.state.sums.summers import draw
from coordinator.machine.state.undecided_round import RECEIPTS_PER_AUTHOR, UndecidedRound
from protocol.ids import Digest, PeerId, sha256

UNKNOWN_BIT_S: Final = 2**23
"""Uplink that all count with while none is measured: any that can be halved often."""

COUNTED_UPLINK: Final = 2
"""Times the median uplink that a key counts at most which was not vouched for."""

PATIENCE_PARTS: Final = 3
"""Patiences in the time between `publish_by` and `commit_by`: a node that is asked in place of
another one has two."""

LEAST_MS: Final = 2_000
"""Least patience, where slots are short: a node that is busy, or a link that lost a packet, is back
by then."""


def plan(opened: UndecidedRound, run: Run) -> RoundSums | None:
    """The summers of a round that opens; None: every payload goes to everybody."""
    authors = [peer for peer, asked in opened.assignments.items() if not asked.muted]
    wanted = run.spec.rounds.sums
    if not wanted or len(authors) < wanted or run.chunks is None:
        return None
    relays, members = _uplinks(run)
    drawn = draw(_seed(opened.round, run), run.chunks, relays, members, authors, _halved(run))
    if drawn is None:
        return None
    exchange_ms = opened.instants.commit_by - opened.instants.publish_by
    patience_ms = max(LEAST_MS, exchange_ms // PATIENCE_PARTS)
    return RoundSums.open(drawn, patience_ms, RECEIPTS_PER_AUTHOR * len(opened.assignments))


def _seed(round: int, run: Run) -> Digest:
    """What nobody knows before the round opens, where the coordinator has a secret."""
    said = b"lockstep.round.v1:%b:%d:%b:" % (run.run_id.encode(), round, run.state.head)
    return sha256(said + run.members.standing.salt)


def _uplinks(run: Run) -> tuple[dict[PeerId, int], dict[PeerId, int]]:
    """The candidates with their uplinks in bytes a second, at least 1: relays, and members."""
    members, idle = run.members, run.state.verdicts.held.keys()
    able = [
        member
        for member in members.ready()
        if member.addresses and members.is_in_time(member.peer) and member.peer not in idle
    ]
    known = [member.work.up_bit_s for member in able if member.work.up_bit_s]
    least = min(known, default=UNKNOWN_BIT_S)
    median = median_low(known) if known else UNKNOWN_BIT_S

    def counted(member: Member) -> int:
        bit_s = member.work.up_bit_s or least
        if members.public and members.standing.word(member.peer) != "vouched":
            bit_s = min(bit_s, COUNTED_UPLINK * median)
        return max(1, bit_s // 8)

    return relay_uplinks(run, median), {member.peer: counted(member) for member in able}


def _halved(run: Run) -> dict[PeerId, int]:
    """How often candidates are halved, of those that are."""
    peers = [*run.relays.here(), *run.members.roster]
    works = [(peer, run.work_of(peer)) for peer in peers]
    return {peer: work.halved for peer, work in works if work and work.halved}
