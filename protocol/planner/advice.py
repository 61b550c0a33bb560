"""A plan in plain sentences: whether decentralised training pays here, why, by how much, and what
to change.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.codec.payload import PayloadShape
from protocol.mixing.topologies import Topology
from protocol.planner.changes import (
    EQUAL,
    largest_hidden_k,
    pass_to_hide,
    rates_for_equality,
    without_the_slowest,
)
from protocol.planner.methods import Prediction
from protocol.planner.plan import Plan, topology_name
from protocol.planner.steps import STUDY, rounds_to_loss
from protocol.runfile import AlgorithmSpec

PAYS_TO_DROP: Final = 1.05
"""A node is worth dropping if the others alone do this many times as much work."""

NAMES_SHOWN: Final = 8
"""Nodes that a sentence names at most, and groups that it lists."""

EXACT: Final = 1e-3
"""Less of the distance than this is rounding."""

PASSES_MAX: Final = 100
"""A pass that many times as long is no advice."""

K_WORTH: Final = 1.25
"""Another k is mentioned if it is this many times the run's."""


def sentences(plan: Plan, algorithm: AlgorithmSpec, shape: PayloadShape) -> list[str]:
    """Advice to a person, the verdict first."""
    if plan.setting.nodes == 1:
        return ["One node exchanges nothing: every method takes the time of its own compute."]
    return [
        _verdict(plan),
        _reason(plan),
        *_threshold(plan),
        *_growth(plan),
        *_topology_choice(plan),
        *_diloco(plan),
        *_coefficients(plan, algorithm, shape),
        *_overlap(plan),
        *_batch(plan),
        *_neighbours(plan),
        *_slowest(plan),
        *_steps(plan, algorithm),
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


def _verdict(plan: Plan) -> str:
    base, best = plan.baseline, plan.best
    ratio = base.seconds / best.seconds if best.seconds else 1.0
    if ratio < EQUAL:
        return (
            f"A global all-reduce is good enough here: {seconds_text(base.seconds)} a round, "
            f"{best.title} {seconds_text(best.seconds)}. Decentralisation does not pay."
        )
    return (
        f"Decentralisation pays: a round of {best.title} takes {seconds_text(best.seconds)}, "
        f"{times_text(ratio)} times less than all-reduce ({seconds_text(base.seconds)}), and sends "
        f"{bytes_text(best.up_bytes)} up instead of {bytes_text(base.up_bytes)}."
    )


def _reason(plan: Plan) -> str:
    """Why, by the largest part of the baseline that is not compute."""
    base = plan.baseline
    if not base.seconds:
        return "Nothing takes any time."
    exposed, waiting = base.exposed_s / base.seconds, base.waiting_s / base.seconds
    parts = {
        f"{exposed:.0%} of an all-reduce round is exchange that compute does not hide": exposed,
        f"{waiting:.0%} of an all-reduce round is waiting for slower nodes": waiting,
    }
    said = [text for text, share in parts.items() if share >= 0.03]
    if not said:
        return "Compute is nearly all of a round with any method: there is little to gain."
    best = plan.best
    return (
        f"{' and '.join(said)}; of a {best.title} round it is "
        f"{(best.exposed_s + best.waiting_s) / best.seconds:.0%}."
    )


def _threshold(plan: Plan) -> Iterator[str]:
    """When: from which rates on an all-reduce is as good."""
    setting = plan.setting
    if plan.baseline.seconds < EQUAL * plan.best.seconds:
        return
    factor = rates_for_equality(setting, plan.best.seconds)
    if factor is None:
        yield "No rate of the lines makes all-reduce equal: delays or slow machines hold it up."
        return
    slowest = min(float(setting.network.up_bit_s.min()), float(setting.network.down_bit_s.min()))
    yield (
        f"All-reduce would be as quick on lines {times_text(factor)} times as fast "
        f"(the slowest direction at {rate_text(slowest * factor)})."
    )


def _growth(plan: Plan) -> Iterator[str]:
    """How DeMo and gossip part with more nodes."""
    demo, gossip = plan.growth.get("demo-overlap", ()), plan.growth.get("gossip-adam", ())
    if not demo or not gossip:
        return
    first = next(
        (one.nodes for one, other in zip(demo, gossip, strict=True) if other.seconds < one.seconds),
        None,
    )
    growth = "The traffic of DeMo grows by a payload with every node, that of gossip Adam does not"
    if first is None:
        yield f"{growth}, but up to {demo[-1].nodes} nodes DeMo with overlap is the quicker one."
    elif first > plan.setting.nodes:
        yield f"{growth}: from {first} nodes on its round is shorter than DeMo's with overlap."
    else:
        yield f"{growth}: its round is the shorter one from {first} nodes on."


def _topology_choice(plan: Plan) -> Iterator[str]:
    """Which topology, by time and by how fast it mixes."""
    gossip = [found for found in plan.predictions if found.method == "gossip-adam"]
    quickest = min(gossip, key=lambda found: found.seconds)
    near = [found for found in gossip if found.seconds <= EQUAL * quickest.seconds]
    mixing = min(near, key=lambda found: found.contraction or 0.0)
    slow = [found for found in gossip if found not in near]
    left = mixing.contraction or 0.0
    mixed = (
        "reaches the exact mean in every period"
        if left < EXACT
        else f"leaves {left:.2g} of the distance to the mean after a round at worst"
    )
    alone = len(near) == 1
    among = "one topology:" if alone else f"{len(near)} of {len(gossip)} topologies; of these"
    text = (
        f"Topology: gossip Adam takes {seconds_text(quickest.seconds)} a round on {among} "
        f"{mixing.topology} {'' if alone else 'mixes best and '}{mixed}"
    )
    for found in sorted(slow, key=lambda found: -found.seconds)[:1]:
        text += f", and {found.topology} takes {seconds_text(found.seconds)}"
    yield f"{text}."


def _diloco(plan: Plan) -> Iterator[str]:
    diloco, local_steps = plan.method("diloco"), plan.setting.traffic.local_steps
    quicker = diloco.seconds < plan.best.seconds
    lighter = diloco.seconds < EQUAL * plan.best.seconds and diloco.up_bytes < plan.best.up_bytes
    if quicker or lighter:
        yield (
            f"DiLoCo: a local step takes {seconds_text(diloco.seconds)} and sends "
            f"{bytes_text(diloco.up_bytes)} up, beside {seconds_text(plan.best.seconds)} and "
            f"{bytes_text(plan.best.up_bytes)} of the best round, but nodes agree only after "
            f"{local_steps} of them, and a step is worth less."
        )


def _coefficients(plan: Plan, algorithm: AlgorithmSpec, shape: PayloadShape) -> Iterator[str]:
    largest = largest_hidden_k(plan.setting, shape)
    top_k = algorithm.top_k
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


def _overlap(plan: Plan) -> Iterator[str]:
    demo, overlapped = plan.method("demo"), plan.method("demo-overlap")
    if demo.seconds > EQUAL * overlapped.seconds:
        yield (
            f"Overlap: overlap = 1 makes a round of local steps {seconds_text(overlapped.seconds)} "
            f"instead of {seconds_text(demo.seconds)}; a whole round of delay costs learning."
        )
    else:
        yield "Overlap: it would save less than a tenth of a round here; overlap = 0 is safe."


def _batch(plan: Plan) -> Iterator[str]:
    factor = pass_to_hide(plan.setting)
    if 1 < factor <= PASSES_MAX:
        yield (
            f"Batch: a node that trains {factor:.3g} times as many samples a round hides DeMo's "
            "exchange behind them (rounds.batch_samples_max, rounds.compute_ms)."
        )


def _neighbours(plan: Plan) -> Iterator[str]:
    if len(plan.groups) > 1:
        shown = [_listed(group) for group in plan.groups]
        yield f"Groups with fast links among them, for gossip Adam: {_listed(shown, ' | ')}."
    for proposal in plan.proposals[:1]:
        if proposal.as_listed_s > EQUAL * proposal.seconds:
            how = "the best of all orders" if proposal.exact else "a good order"
            yield (
                f"Neighbours: {proposal.topology} in the order {', '.join(proposal.names)} "
                f"({how}) takes {seconds_text(proposal.seconds)} a round instead of "
                f"{seconds_text(proposal.as_listed_s)} as listed."
            )


def _slowest(plan: Plan) -> Iterator[str]:
    for found in (plan.method("demo-overlap"), plan.method("gossip-adam")):
        one = without_the_slowest(plan.setting, found, _topology(found))
        if one is not None and one.work > PAYS_TO_DROP:
            lines = plan.setting.network.lines
            yield (
                f"Slowest: without {_listed([lines[node].name for node in one.nodes])} a round of "
                f"{found.title} takes {seconds_text(one.seconds)}, not "
                f"{seconds_text(found.seconds)}; the other nodes alone do "
                f"{times_text(one.work)} times as much."
            )


def _listed(names: Sequence[str], between: str = ", ") -> str:
    """Some names, and how many more."""
    shown = between.join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _topology(found: Prediction) -> Topology | None:
    return None if found.topology is None else Topology(topology_name(found.topology))


def _steps(plan: Plan, algorithm: AlgorithmSpec) -> Iterator[str]:
    known = {
        found.title: rounds * found.seconds
        for found in plan.predictions
        if (rounds := rounds_to_loss(found.method, algorithm)) is not None
    }
    if len(known) > 1:
        times = ", ".join(f"{title} {seconds_text(total)}" for title, total in known.items())
        yield f"Time to a fixed loss, with the rounds of one study ({STUDY}): {times}."
    yield (
        "Rounds are not equally good. What a round of gossip Adam or a step of DiLoCo is worth "
        "beside one of all-reduce is not known here."
    )
