"""The door of a run: a node says hello, and becomes a member, or is refused.

Rules
- Verdicts, bans and evictions keep a key out; the run's admission keeps out one that is new.
- In a full run a member that does not become ready loses its place to one that joins.
- In a run that is open to the public a node without standing is told to others once it is ready.
- Receipts of a member with a new session are in doubt until it is ready: it may be a new process.
- A relay that offered to add, and becomes a member, adds in later rounds, as a member.
"""

from coordinator.machine.events.effects import Admit, Effect, Evict, Refuse, TellMembers
from coordinator.machine.events.inputs import Joined
from coordinator.machine.rules import ending, membership
from coordinator.machine.rules.sums import offering
from coordinator.machine.state.run import Run
from protocol.ids import PeerId

READY_LEASES = 20
"""Leases for which a full run keeps the place of a member that is not ready and comes no nearer to
it: five minutes with the default, in which a node fetches some gigabytes or shows progress."""


def take(said: Joined, run: Run, now_ms: int) -> list[Effect]:
    """A node opens a session."""
    state, peer = run.state, said.peer
    if refused := _refusal(peer, run, now_ms):
        return [refused]
    effects = _join(said, run, now_ms)
    if joined := run.members.get(peer) is not None:
        offering.end(peer, run, now_ms)
    for undecided in state.undecided if joined else ():
        undecided.doubt(peer)
    state.voids.forget(peer)
    if state.end.concluded and joined:  # the others were let go
        effects.append(ending.farewell(state))
    return membership.follow(effects, run, now_ms)


def kept_out(peer: PeerId, run: Run, now_ms: int) -> Refuse | None:
    """How a key is turned away that had been here: by a verdict, a ban or an eviction."""
    operator = run.state.operator
    if reason := run.state.verdicts.refusal(peer, now_ms):
        return Refuse(peer, reason, True)
    if reason := operator.banned(peer):
        return Refuse(peer, reason)
    away = operator.away.get(peer)
    if away and now_ms < away.until_ms:
        return Refuse(peer, away.words(now_ms), retry=True)
    return None


def not_admitted(peer: PeerId, run: Run) -> str:
    """Why the run does not admit a key; empty when it does."""
    trusted = peer in run.members.standing.vouched or peer in run.state.verdicts.auditors
    return run.state.operator.admission.refusal(peer, vouched=trusted)


def _refusal(peer: PeerId, run: Run, now_ms: int) -> Refuse | None:
    if refused := kept_out(peer, run, now_ms):
        return refused
    if run.members.get(peer) is None and (reason := not_admitted(peer, run)):
        return Refuse(peer, reason)
    return None


def _join(said: Joined, run: Run, now_ms: int) -> list[Effect]:
    members, places = run.members, run.spec.membership.members_max
    effects, known = list[Effect](), members.get(said.peer)
    if known is None and len(members) >= places:
        effects = _make_room(said.peer, run, now_ms)
        if not effects:
            return [Refuse(said.peer, f"the run is full: {places} members", retry=True)]
    moved = known is None or known.addresses != said.addresses
    if known:
        members.meet(known, said, now_ms)
    else:
        members.add(said, now_ms)
    effects.append(Admit(said.peer))
    if moved and members.roster[said.peer].listed:
        effects.append(TellMembers(came=(said.peer,)))
    return effects


def _make_room(peer: PeerId, run: Run, now_ms: int) -> list[Effect]:
    """Take the place of a member that has not become ready and shows no progress; one with standing
    takes that of any member without it. Nothing when every place is kept.
    """
    members = run.members
    stale_ms = now_ms - READY_LEASES * members.lease_ms
    entitled = members.public and members.decides(peer)
    given_up = [
        member
        for member in members
        if (member.state == "catching up" and member.progress_ms <= stale_ms)
        or (entitled and not members.decides(member.peer))
    ]
    if not given_up:
        return []
    victim = min(given_up, key=lambda member: (member.state == "ready", member.progress_ms))
    members.evict(victim.peer)
    reason = "the run is full, and this node was not ready in time: it waits for a place"
    return [Evict(victim.peer, reason), TellMembers(gone=(victim.peer,))]
