"""A plan in plain sentences: whether decentralised training pays here, what the run takes, and what
to change in it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.codec.payload import PayloadShape
from protocol.mixing.topologies import Topology
from protocol.planner.changes import EQUAL, largest_hidden_k, pass_to_hide, without_the_slowest
from protocol.planner.plan import RunPlan

PAYS_TO_DROP: Final = 1.05
"""A node is worth dropping if the others alone do this many times as much work."""

NAMES_SHOWN: Final = 8
"""Nodes that a sentence names at most."""

EXACT: Final = 1e-3
"""Less of the distance than this is rounding."""

PASSES_MAX: Final = 100
"""A pass that many times as long is no advice."""

K_WORTH: Final = 1.25
"""Another k is mentioned if it is this many times the run's."""


def sentences(plan: RunPlan, shape: PayloadShape) -> list[str]:
    """Advice to a person, the verdict first; `shape` is that of the run's payloads."""
    if plan.setting.nodes == 1:
        alone = "One node exchanges nothing: every method takes the time of its own compute."
        return [alone, _whole(plan)]
    found = [_verdict(plan), _whole(plan), *_lightest(plan)]
    if plan.spec.algorithm.mixes:
        found.append(_topology_choice(plan))
    if plan.spec.algorithm.moves:
        found += [*_coefficients(plan, shape), _overlap(plan), *_batch(plan)]
    return [
        *found,
        *_slowest(plan),
        "A round of one method is not worth a round of another, nor a step of DiLoCo a round.",
    ]


def seconds_text(seconds: float) -> str:
    """A duration with three digits, in the unit that a person would choose."""
    if seconds < 1e-6:
        return "0 s"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 999.5:
        return f"{seconds:.3g} s"
    if seconds < 6000:
        return f"{seconds / 60:.3g} min"
    hours = seconds / 3600
    return f"{hours:.3g} h" if hours < 99.95 else f"{times_text(hours / 24)} d"


def times_text(factor: float) -> str:
    """A factor with three digits, whole from 100 on."""
    return f"{factor:.3g}" if factor < 99.95 else f"{factor:,.0f}"


def bytes_text(count: float) -> str:
    """A number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def rate_text(bit_s: float) -> str:
    """A rate with three digits."""
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bit_s < 999.5:
            return f"{bit_s:.3g} {unit}"
        bit_s /= 1000
    return f"{bit_s:.3g} Tbit/s"


def _verdict(plan: RunPlan) -> str:
    base, best = plan.baseline, plan.best
    if (less := plan.times_less(best)) < EQUAL:
        return (
            f"A global all-reduce is good enough here: {seconds_text(base.seconds)} a round, "
            f"{plan.title(best)} {seconds_text(best.seconds)}. Decentralisation does not pay."
        )
    return (
        f"Decentralisation pays: a round of {plan.title(best)} takes {seconds_text(best.seconds)}, "
        f"{times_text(less)} times less than all-reduce ({seconds_text(base.seconds)}), and sends "
        f"{bytes_text(best.up_bytes)} up instead of {bytes_text(base.up_bytes)}."
    )


def _whole(plan: RunPlan) -> str:
    """How long the run takes as its run file has it, and the bytes of a day."""
    sent = bytes_text(plan.day_bytes(plan.own))
    return (
        f"In all: {plan.spec.schedule.steps:,} steps of this run, by {plan.title(plan.own)}, take "
        f"{seconds_text(plan.length_s)}, and a node sends {sent} a day and receives as much."
    )


def _lightest(plan: RunPlan) -> Iterator[str]:
    """Which method is for a line whose bytes are counted."""
    least, own = min(plan.decentralised, key=lambda found: found.up_bytes), plan.own
    if EQUAL * least.up_bytes < own.up_bytes:
        yield (
            f"Bytes: a round of {plan.title(least)} sends the fewest, {bytes_text(least.up_bytes)} "
            f"up; one of this run sends {bytes_text(own.up_bytes)}."
        )


def _topology_choice(plan: RunPlan) -> str:
    """Which topology, by time and by how fast it mixes."""
    gossip = [found for found in plan.predictions if found.topology]
    quickest = min(found.seconds for found in gossip)
    near = [found for found in gossip if found.seconds <= EQUAL * quickest]
    mixing = min(near, key=lambda found: found.contraction or 0.0)
    left = mixing.contraction or 0.0
    mixed = (
        "reaches the exact mean in every period"
        if left < EXACT
        else f"leaves {left:.2g} of the distance to the mean after a round at worst"
    )
    return (
        f"Topology: of the {len(near)} quickest, at {seconds_text(quickest)} a round, "
        f"{mixing.topology} mixes best and {mixed}."
    )


def _coefficients(plan: RunPlan, shape: PayloadShape) -> Iterator[str]:
    largest, top_k = largest_hidden_k(plan.setting, shape), shape.top_k
    if largest is None:
        yield (
            "k: not even k = 1 hides behind a round of compute; longer passes help, a smaller k "
            "little."
        )
    elif largest >= K_WORTH * top_k:
        yield (
            f"k: with overlap, k up to {largest} costs no time (the run has {top_k}); a larger k "
            "may need fewer rounds."
        )
    elif largest < top_k:
        yield (
            f"k: the exchange hides behind compute only up to k = {largest} (the run has {top_k})."
        )


def _overlap(plan: RunPlan) -> str:
    waits, overlapped = plan.method("demo"), plan.method("demo-overlap")
    if waits.seconds <= EQUAL * overlapped.seconds:
        return "Overlap: it would save less than a tenth of a round here; overlap = 0 is safe."
    return (
        f"Overlap: overlap = 1 makes a round of local steps {seconds_text(overlapped.seconds)} "
        f"instead of {seconds_text(waits.seconds)}; a whole round of delay costs learning."
    )


def _batch(plan: RunPlan) -> Iterator[str]:
    factor = pass_to_hide(plan.setting)
    if 1 < factor <= PASSES_MAX:
        yield (
            f"Batch: a node that trains {factor:.3g} times as many samples a round hides the "
            "exchange behind them (rounds.batch_samples_max, rounds.compute_ms)."
        )


def _slowest(plan: RunPlan) -> Iterator[str]:
    own = plan.own
    topology = Topology(own.topology) if own.topology else None
    one = without_the_slowest(plan.setting, own, topology)
    if one is not None and one.work > PAYS_TO_DROP:
        lines = plan.setting.network.lines
        yield (
            f"Slowest: without {_listed([lines[node].name for node in one.nodes])} a round takes "
            f"{seconds_text(one.seconds)}, not {seconds_text(own.seconds)}; the other nodes alone "
            f"do {times_text(one.work)} times as much."
        )


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
