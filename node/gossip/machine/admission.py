"""Judges a peer's offer: taken, late, refused, or a fault. Pure.

An offer is bounded by sender, size, round and count. A peer is blamed only for what no honest peer
does. An offer that a matter of timing makes useless is refused without blame, and the peer offers
again later.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.round_state import Round
from node.gossip.machine.rounds import AHEAD_ROUNDS_MAX, Rounds
from node.gossip.machine.sources import Sources
from protocol.ids import short


def admit(
    offer: events.Offered, rounds: Rounds, sources: Sources, payload_bytes_max: int
) -> list[events.Effect]:
    """Enter an offer in its round. Returns why it was not entered; nothing if it was entered, or
    if it came too late to matter.
    """
    sender, number = offer.sender, offer.round
    if sender not in sources:
        reason = f"expected an offer from a member, got one from {short(sender)}"
        return [events.Blame(sender, reason)]
    if not 1 <= offer.size <= payload_bytes_max:
        reason = f"expected a payload of 1..{payload_bytes_max} bytes, got an offer of {offer.size}"
        return [events.Blame(sender, reason)]
    if rounds.newest is None:
        reason = f"no round is known here yet, got an offer for round {number}"
        return [events.Refuse(sender, reason)]
    if number > rounds.newest + AHEAD_ROUNDS_MAX:  # no fault: this node may be catching up
        last = rounds.newest + AHEAD_ROUNDS_MAX
        reason = f"expected an offer up to round {last}, got one for round {number}"
        return [events.Refuse(sender, reason)]
    if rounds.is_over(number):
        return []  # late: the round is decided here, and not yet where the offer comes from
    return _enter(offer, rounds.follow(number))


def _enter(offer: events.Offered, round: Round) -> list[events.Effect]:
    sender, payload = offer.sender, round.payloads.get(offer.digest)
    if refusal := _unlike_the_plan(offer, round):
        return [refusal]
    round.callers.add(sender)
    if payload is None:
        if round.committed:
            return []  # late: the commit left it out
        if offer.digest in round.worthless:
            reason = f"payload {offer.digest.hex()[:8]} counts for nothing: expected no offer of it"
            return [events.Blame(sender, reason)]
        if refusal := _no_room(offer, round):
            return [refusal]
        payload = round.payloads[offer.digest] = Payload(offer.size)
    elif payload.size != offer.size and offer.ranges and not payload.held:
        payload.disputed = True  # else who lists another's part, of a wrong size, keeps it out
    elif payload.size != offer.size and not payload.missing:
        reason = (
            f"payload {offer.digest.hex()[:8]}: expected {payload.size} bytes, "
            f"got an offer of {offer.size}"
        )
        kind = events.Blame if payload.held else events.Refuse
        return [kind(sender, reason)]
    payload.ranges |= offer.ranges & round.ranges  # none where a commit came before the plan
    payload.add_holder(sender)
    return []


def _unlike_the_plan(offer: events.Offered, round: Round) -> events.Effect | None:
    """The refusal of a part in a round that has none, or not here yet, or none for this node; or
    of what is no part in a round that has them. No blame: the peer may know a plan sooner.
    """
    if bool(offer.ranges) == round.has_parts and not offer.ranges & ~round.ranges:
        return None
    if round.committed:
        return None  # late, or a result that the commit names
    expected = f"parts of the ranges {round.ranges:#x}" if round.has_parts else "no parts"
    reason = f"expected {expected} in round {offer.round}, got an offer of {offer.ranges:#x}"
    return events.Refuse(offer.sender, reason)


def _no_room(offer: events.Offered, round: Round) -> events.Effect | None:
    """The answer to an offer of a new payload in a full round: blame for a peer that offered more
    payloads than there are members, refusal for any other peer.
    """
    if len(round.payloads) < round.payloads_max:
        return None
    if round.has_parts:  # this node's own parts of other ranges take no place
        taken = sum(bool(part.ranges & round.ranges) for part in round.payloads.values())
        if taken < round.payloads_max:
            return None
    offered = sum(offer.sender in payload.holders for payload in round.payloads.values())
    if offered >= round.payloads_max:
        reason = (
            f"expected at most {round.payloads_max} payloads in round {offer.round}, "
            "got one more offer"
        )
        return events.Blame(offer.sender, reason)
    reason = f"round {offer.round} has {len(round.payloads)} payloads already"
    return events.Refuse(offer.sender, reason)
