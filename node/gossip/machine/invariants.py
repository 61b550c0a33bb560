"""What always holds of an exchange between two events. Pure.

Read by tests and the simulation after each event.
"""

from node.gossip.machine.events import SwarmLimits
from node.gossip.machine.pull_policy import PullPolicy
from node.gossip.machine.round_state import Round
from node.gossip.machine.rounds import AHEAD_ROUNDS_MAX, UNDECIDED_ROUNDS_MAX, Rounds
from node.gossip.machine.sources import Sources
from protocol.ids import PeerId


def check(
    own: PeerId, limits: SwarmLimits, rounds: Rounds, sources: Sources, pulls: PullPolicy
) -> None:
    """`AssertionError` names an invariant that is broken."""
    newest, known = rounds.newest, {*rounds.peers.members, *rounds.peers.relays}
    open_rounds = [number for number, round in rounds if round.open]
    undecided = [number for number, round in rounds if not round.committed]
    assert sum(number in undecided for number in open_rounds) <= UNDECIDED_ROUNDS_MAX, undecided
    assert not undecided or newest is not None, f"rounds {undecided} before any was opened"
    for number, round in rounds:
        assert not round.open or number <= (newest or 0), f"round {number} is open too early"
        assert round.committed or number <= (newest or 0) + AHEAD_ROUNDS_MAX, number
        assert own not in round.neighbours, f"round {number}: its own neighbour"
        for digest, payload in round.payloads.items():
            name = f"round {number}, payload {digest.hex()[:8]}"
            assert payload.told <= known, f"{name}: told a stranger"
            assert payload.told <= sources.linked, f"{name}: told an unlinked peer"
            assert payload.size > 0, f"{name}: empty"
        if round.has_parts:
            _check_parts(number, round, frozenset(rounds.peers.relays))
        else:
            _check_whole(number, round)
    assert own not in sources, "this node is a source of its own"
    live = pulls.sources
    assert len(live) <= limits.pulls_max, f"{len(live)} pulls"
    for digest, source in live.items():
        assert rounds.knows(digest), f"a pull of {digest.hex()[:8]}, which none needs"
        same = sum(other == source for other in live.values())
        assert same <= limits.pulls_per_peer, f"{same} pulls from {source}"


def _check_whole(number: int, round: Round) -> None:
    """A round whose payloads are not cut, or one with a commit."""
    own = [digest.hex() for digest, payload in round.payloads.items() if payload.own]
    assert len(own) <= 1 or round.plan, f"round {number}: own payloads {own}"
    for digest, payload in round.payloads.items():
        name = f"round {number}, payload {digest.hex()[:8]}"
        assert payload.wanted is round.committed, f"{name}: wanted without a commit"
        assert round.plan or not payload.ranges, f"{name}: a part in a round without a plan"


def _check_parts(number: int, round: Round, relays: frozenset[PeerId]) -> None:
    """An undecided round with a plan."""
    assert round.plan is not None
    assert round.open, f"round {number}: a plan before it was opened"
    taken = 0
    for digest, part in round.payloads.items():
        name = f"round {number}, part {digest.hex()[:8]}"
        assert not part.ranges >> round.plan.ranges, f"{name}: of no range: {part.ranges:#x}"
        if not (part.own or part.held or part.wanted):
            assert part.ranges & round.ranges, f"{name}: not for this node"
            taken += 1
        assert part.told <= round.takers_of(part) | relays, f"{name}: told who does not take it"
    assert taken <= round.payloads_max, f"round {number}: {taken} parts are known"
