"""Sets the length of the next round and the samples that each member is asked for. All arithmetic
is in integers: the same input gives the same slot and the same shares.

    opened ----- compute ----- bell -- publish -- publish_by -- exchange -- commit_by
                                 needed: end of its compute       needed: announcement until
                                 until its announcement           enough others hold the payload

The slot of the next round is one and a half times the time in which three in four members were
ready in the last one. It covers at least the quorum: a slot in which the quorum cannot be met would
skip every round. So one slow member does not slow the others, and a run waits for many slow ones. A
member that has not announced when a round ends, or whose payload is not copied then, counts as one
that needed the time until then. So the slot grows from round to round until such members fit or the
run file's bound is reached. The slot grows at once and shrinks by a quarter of the way, because a
missed deadline costs more than one that was not needed: a round closes as soon as everything is
there.
"""

from collections.abc import Mapping, Sequence

from coordinator.machine.state.pace import Needs, Pace
from protocol.clock import Slot, stated_slot
from protocol.ids import PeerId
from protocol.runfile import RoundsSpec

HEADROOM_PERCENT = 125
"""Share of a member, in percent of the samples that its measured speed allows until the bell; above
100, so that a node that has become faster shows it."""

KEPT_TO_PERCENT = 75
"""Members whose need a slot covers, in percent."""

MARGIN_PERCENT = 150
"""Length of a part of the slot, in percent of the need: home links vary by less from one round to
the next."""


def next_pace(pace: Pace, needs: Needs, rounds: RoundsSpec, *, hides: bool) -> Pace:
    """The pace after a round with these needs. `hides` tells whether the exchange is hidden behind
    the next round's compute.
    """
    if rounds.stretch == 1 or not needs.publish_ms:
        return pace
    stated, old = stated_slot(rounds), pace.slot
    publish_need = _kept_to(needs.publish_ms, rounds.quorum)
    exchange_need = _kept_to(needs.exchange_ms, rounds.quorum)
    hidden = publish_need + exchange_need if hides else 0
    slot = Slot(
        _eased(old.compute_ms, hidden, (stated.compute_ms, stated.compute_ms * rounds.stretch)),
        _eased(old.publish_ms, publish_need, _bounds(stated.publish_ms, rounds.stretch)),
        _eased(old.exchange_ms, exchange_need, _bounds(stated.exchange_ms, rounds.stretch)),
    )
    if slot == stated:
        return Pace(slot)
    parts = " + ".join(
        _seconds(part) for part in (slot.compute_ms, slot.publish_ms, slot.exchange_ms)
    )
    count = _rank(len(needs.publish_ms), rounds.quorum)
    return Pace(
        slot,
        f"slot of {parts} s: {count} of {len(needs.publish_ms)} members announce within "
        f"{_seconds(publish_need)} s and are copied {_seconds(exchange_need)} s later",
    )


def samples_per_share(
    speeds: Mapping[PeerId, tuple[int, int]], rounds: RoundsSpec, compute_ms: int
) -> dict[PeerId, int]:
    """Samples to lease to each member for `compute_ms` of work.

    `speeds[peer]` is (thousandths of a sample per second, 0 if unknown; strikes). Each member is
    asked for the samples that it can train until the bell, halved per strike, at least one. When
    the sum exceeds `batch_samples_max`, every member keeps one sample and the wanted rest is cut
    down in proportion; the remainder goes to the largest fractions, ties by id. So the sum exceeds
    the bound only when there are more members than samples.
    """
    wanted = {peer: _wanted(*speeds[peer], rounds, compute_ms) for peer in sorted(speeds)}
    total = sum(wanted.values())
    if total <= rounds.batch_samples_max:
        return wanted
    beyond, spare = total - len(wanted), max(0, rounds.batch_samples_max - len(wanted))
    if not beyond:
        return wanted  # more members than samples: one each
    parts = {peer: divmod((want - 1) * spare, beyond) for peer, want in wanted.items()}
    cut = {peer: 1 + whole for peer, (whole, _) in parts.items()}
    by_fraction = sorted(parts, key=lambda peer: (-parts[peer][1], peer))
    for peer in by_fraction[: len(wanted) + spare - sum(cut.values())]:
        cut[peer] += 1
    return cut


def _wanted(speed: int, strikes: int, rounds: RoundsSpec, compute_ms: int) -> int:
    able = (
        speed * compute_ms * HEADROOM_PERCENT // 100_000_000
        if speed
        else rounds.share_samples_first
    )
    return max(1, min(able, rounds.batch_samples_max) >> strikes)


def _rank(count: int, quorum: int) -> int:
    """The number of members, of `count`, that a slot covers."""
    return min(count, max(quorum, -(-KEPT_TO_PERCENT * count // 100)))


def _kept_to(ascending: Sequence[int], quorum: int) -> int:
    return ascending[_rank(len(ascending), quorum) - 1] if ascending else 0


def _bounds(stated_ms: int, stretch: int) -> tuple[int, int]:
    return max(1, stated_ms // stretch), stated_ms * stretch


def _eased(old_ms: int, need_ms: int, bounds: tuple[int, int]) -> int:
    """A part of the next slot: up at once, down by a quarter of the way."""
    least_ms, most_ms = bounds
    target_ms = min(most_ms, max(least_ms, need_ms * MARGIN_PERCENT // 100))
    return (
        target_ms if target_ms >= old_ms else max(target_ms, old_ms - (old_ms - target_ms + 3) // 4)
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f}".removesuffix(".0")
