"""The coordinator's metrics for Prometheus: base units, `_total` on counters, no unbounded
labels.
"""

from collections.abc import Callable, Iterator, Mapping, Sized
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from border.crowd import REASONS
from coordinator.history import SECONDS_BOUNDS, RoundTimes
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules.demotion import alarm
from coordinator.status_document import phase, standing, state_lost
from coordinator.traffic import CoordinatorTraffic
from protocol.traffic import MonotonicCounters

PHASES = ("waiting", "paused", "computing", "exchanging", "finished")
STATES = ("ready", "muted", "held", "catching up", "away")


class RoundsCollector(Collector):
    """Reads the machine's state at each scrape and keeps no counters of its own."""

    def __init__(self, rounds: RunMachine, now_ms: Callable[[], int]) -> None:
        self._rounds, self._now_ms = rounds, now_ms

    def collect(self) -> Iterator[Metric]:
        state = self._rounds.state
        yield self._run_info()
        totals, tally = state.totals, state.verdicts.tally
        yield _counter("rounds_committed", "Rounds that were committed.", totals.committed)
        yield _counter("rounds_skipped", "Rounds that were skipped.", totals.skipped)
        yield _counter("samples_trained", "Samples of committed payloads.", totals.samples_trained)
        text = "Leased samples that no commit counts: most are leased again."
        yield _counter("samples_left_out", text, totals.samples_left_out)
        text = "Samples left out that are not leased again."
        yield _counter("samples_lost", text, totals.samples_lost)
        yield _counter("payload_bytes", "Bytes of committed payloads.", totals.payload_bytes)
        text = "Committed rounds whose digests were compared."
        yield _counter("rounds_checked", text, tally.rounds_checked)
        text = "Committed rounds with unequal digests."
        yield _counter("rounds_disputed", text, tally.rounds_disputed)
        text = "Auditors whose word on states is final."
        yield _gauge("auditors", text, len(state.verdicts.auditors))
        text = (
            "1 while auditors differ, members differ and no auditor has said which is right, or an "
            "auditor accuses with evidence that proves nothing."
        )
        yield _gauge("audit_alarm", text, bool(alarm(state)))
        text = "Keys without standing by an auditor's evidence."
        yield _gauge("demoted", text, len(state.members.standing.demoted))
        text = "Newest decided round; -1 before the first."
        yield _gauge("decided_round", text, state.decided_round)
        steps = self._rounds.state.schedule(self._rounds.spec).steps
        yield _gauge("steps_planned", "Length of the run in steps.", steps)
        if state.loss is not None:
            yield _gauge("loss_nats_per_token", "Training loss of the newest commit.", state.loss)
        if measured := state.evaluation.newest:
            text = "Newest loss on held-out samples, in nats per token."
            yield _gauge("validation_loss", text, measured.loss)
            text = "Round after which it was measured."
            yield _gauge("validation_round", text, measured.round)
        text = "1 while members wait and none of them holds the state of the newest commit."
        yield _gauge("state_lost", text, bool(state_lost(self._rounds, self._now_ms())))
        text = "Distance of the members from the mean of their parameters; 0 where all are equal."
        apart = state.consensus.document()["distance"]
        yield _gauge("consensus_distance", text, apart if isinstance(apart, float) else 0.0)
        yield self._members()
        yield self._phase()

    def _run_info(self) -> Metric:
        spec = self._rounds.spec
        labels = {
            "run": self._rounds.run_id,
            "name": spec.name,
            "algorithm": spec.algorithm.name,
            "trust": spec.membership.trust,
        }
        text = "1; the labels say which run it is."
        family = GaugeMetricFamily("lockstep_coordinator_run_info", text, labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _members(self) -> Metric:
        family = GaugeMetricFamily(
            "lockstep_coordinator_members", "Members by state.", labels=["state"]
        )
        states = [standing(self._rounds, member)[0] for member in self._rounds.members]
        for state in STATES:
            family.add_metric([state.replace(" ", "_")], states.count(state))
        return family

    def _phase(self) -> Metric:
        family = GaugeMetricFamily(
            "lockstep_coordinator_phase", "1 for the run's phase.", labels=["phase"]
        )
        for name in PHASES:
            family.add_metric([name], float(phase(self._rounds.state) == name))
        return family


class TimesCollector(Collector):
    """How long rounds took, from their opening to their decision."""

    def __init__(self, times: RoundTimes) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        bounds = [*map(str, map(float, SECONDS_BOUNDS)), "+Inf"]
        counts = accumulate(self._times.counts)
        yield HistogramMetricFamily(
            "lockstep_coordinator_round_seconds",
            "Time of decided rounds, since the process began.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=self._times.total_s,
        )


class TrafficCollector(Collector):
    """Bytes that this process has sent and received, by owner."""

    def __init__(self, traffic: CoordinatorTraffic) -> None:
        self._traffic = traffic
        self._counters = MonotonicCounters()

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "lockstep_coordinator_traffic_bytes", "Bytes on the line.", labels=["kind", "direction"]
        )
        for name, count in self._counters.update(self._traffic.document()).items():
            kind, _, direction = name.removesuffix("_bytes").rpartition("_")
            family.add_metric([kind, direction], count)
        yield family


class DoorCounts(Protocol):
    """The part that lets nodes in, with counts of those that it refused."""

    @property
    def copies_refused(self) -> int:
        """Processes that were refused because another one was at work with their key."""

    @property
    def cuts(self) -> Mapping[str, int]:
        """Connections without a proven key that were cut, by reason."""

    @property
    def run_refusals(self) -> Sized:
        """Nodes that cannot train the run file."""


class DoorCollector(Collector):
    """Counts of those who did not become members; zeros without a door."""

    def __init__(self, door: DoorCounts | None) -> None:
        self._door = door

    def collect(self) -> Iterator[Metric]:
        text = "Processes refused because another one was at work with their key."
        yield _counter("copied_keys_refused", text, self._door.copies_refused if self._door else 0)
        text = "Connections without a proven key that were cut or not let in, by reason."
        cuts = CounterMetricFamily("lockstep_coordinator_connections_cut", text, labels=["reason"])
        for reason in REASONS:
            cuts.add_metric([reason], self._door.cuts.get(reason, 0) if self._door else 0)
        yield cuts
        text = "Nodes that cannot train the run file, of the newest ones."
        yield _gauge("nodes_refusing", text, len(self._door.run_refusals) if self._door else 0)


def registry(
    rounds: RunMachine,
    traffic: CoordinatorTraffic | None = None,
    door: DoorCounts | None = None,
    now_ms: Callable[[], int] | None = None,
    times: RoundTimes | None = None,
) -> CollectorRegistry:
    """A registry with the run's metrics and, if `traffic` is counted, its bytes; `now_ms` is the
    run's clock, `times` those of its rounds.
    """
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(RoundsCollector(rounds, now_ms or (lambda: rounds.state.last_ms)))
    collectors.register(TimesCollector(times or RoundTimes()))
    collectors.register(DoorCollector(door))
    if traffic:
        collectors.register(TrafficCollector(traffic))
    return collectors


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"lockstep_coordinator_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lockstep_coordinator_{name}", text, value=value)
