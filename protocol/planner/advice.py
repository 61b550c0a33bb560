"""A plan in plain sentences: whether decentralised training pays here, and what the run takes."""

from typing import Final

from protocol.planner.plan import RunPlan

EQUAL: Final = 1.1
"""Two rounds whose lengths differ by less than this factor are called equal."""


def sentences(plan: RunPlan) -> list[str]:
    """Advice to a person, the verdict first."""
    if plan.setting.nodes == 1:
        alone = "One node exchanges nothing: every method takes the time of its own compute."
        return [alone, _whole(plan)]
    return [
        _verdict(plan),
        _whole(plan),
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
