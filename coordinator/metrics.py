"""The coordinator's numbers for Prometheus: base units, `_total` on counters, no unbounded
labels."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.machine.membership import Member
from coordinator.machine.rounds import Rounds
from coordinator.status_document import phase
from coordinator.traffic import Traffic

PHASES = ("waiting", "computing", "exchanging", "finished")
STATES = ("ready", "muted", "held", "catching up", "away")


class RoundsCollector(Collector):
    """Reads the machine at each scrape; nothing is counted twice because nothing is counted
    here."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def collect(self) -> Iterator[Metric]:
        """All families, from the machine's fields."""
        rounds = self._rounds
        yield _counter("rounds_committed", "Rounds that were committed.", rounds.committed)
        yield _counter("rounds_skipped", "Rounds that were skipped.", rounds.skipped)
        yield _counter("samples_trained", "Samples trained by nodes.", rounds.samples_trained)
        yield _counter("samples_lost", "Leased samples lost with their node.", rounds.samples_lost)
        yield _counter("payload_bytes", "Bytes of committed payloads.", rounds.payload_bytes)
        yield _counter(
            "rounds_checked",
            "Committed rounds whose digests were compared.",
            rounds.verdicts.tally.rounds_checked,
        )
        yield _counter(
            "rounds_disputed",
            "Committed rounds with unequal digests.",
            rounds.verdicts.tally.rounds_disputed,
        )
        yield _gauge(
            "decided_round",
            "Newest round with a final word; -1 before the first.",
            rounds.decided_round,
        )
        yield _gauge("steps_planned", "Length of the run in steps.", rounds.spec.schedule.steps)
        if rounds.loss is not None:
            yield _gauge("loss_nats_per_token", "Training loss of the newest commit.", rounds.loss)
        members = GaugeMetricFamily(
            "lockstep_coordinator_members", "Members by state.", labels=["state"]
        )
        states = [_state(rounds, member) for member in rounds.members]
        for state in STATES:
            members.add_metric([state.replace(" ", "_")], states.count(state))
        yield members
        phases = GaugeMetricFamily(
            "lockstep_coordinator_phase", "1 for the run's phase.", labels=["phase"]
        )
        for name in PHASES:
            phases.add_metric([name], float(phase(rounds) == name))
        yield phases


class TrafficCollector(Collector):
    """The bytes of this process's line, by their owner."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._most: dict[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        """One family. No counter falls, which Prometheus takes for a restart: bytes in buffers make
        overhead waver."""
        family = CounterMetricFamily(
            "lockstep_coordinator_traffic_bytes", "Bytes on the line.", labels=["kind", "direction"]
        )
        for name, count in self._traffic.document().items():
            kind, _, direction = name.removesuffix("_bytes").rpartition("_")
            if count is not None:  # else it is not known
                self._most[name] = max(count, self._most.get(name, 0))
                family.add_metric([kind, direction], self._most[name])
        yield family


def registry(rounds: Rounds, traffic: Traffic | None = None) -> CollectorRegistry:
    """A registry with the run's numbers and, where it is counted, the traffic."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(RoundsCollector(rounds))
    if traffic:
        collectors.register(TrafficCollector(traffic))
    return collectors


def _state(rounds: Rounds, member: Member) -> str:
    if not member.connected:
        return "away"
    if member.peer in rounds.verdicts.held:
        return "held"
    return "muted" if member.state == "ready" and rounds.muted_reason(member) else member.state


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"lockstep_coordinator_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lockstep_coordinator_{name}", text, value=value)
