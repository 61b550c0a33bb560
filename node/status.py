"""The state of a node for people: one record, which is told what happens, and which the status page
and the metrics read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node.model.passes import RoundWork
from node.standing import Doing, OwnStanding
from protocol import wire_pb2 as wire
from protocol.traffic import MonotonicCounters


@dataclass(slots=True)
class PassTimes:
    """The largest passes over samples that a node has made, and the quickest of them. Other
    programs only ever slow a pass.
    """

    samples: int = 0
    quickest_s: float = 0.0
    made: int = 0

    def note(self, samples: int, seconds: float) -> None:
        """A pass was made. The last one of a share may be smaller, and does not count."""
        if samples > self.samples:
            self.samples, self.quickest_s, self.made = samples, seconds, 0
        if samples == self.samples:
            self.quickest_s, self.made = min(self.quickest_s, seconds), self.made + 1


@dataclass(slots=True)
class OwnWork:
    """What a node has done for its run since it started."""

    rounds_trained: int = 0
    rounds_counted: int = 0
    rounds_left_out: int = 0
    samples: int = 0
    samples_late: int = 0
    """Samples that were trained before the round in front of theirs was applied."""
    tokens: int = 0
    loss: float | None = None
    passes: PassTimes = field(default_factory=PassTimes)
    payload_bytes: int = 0
    payload_values: int = 0

    def trained(self, work: RoundWork | None, late: int) -> None:
        """The passes of a round are made, `late` samples of them before the round in front was
        applied. `work` is None when their gradients are of no use.
        """
        self.rounds_trained += 1
        self.samples_late += late
        if work:
            self.loss = work.loss_nats_per_token
            self.samples += work.samples
            self.tokens += work.tokens

    def encoded(self, payload_bytes: int, values: int) -> None:
        """A payload was made."""
        self.payload_bytes, self.payload_values = payload_bytes, values

    def decided(self, *, counted: bool) -> None:
        """A round with a payload of this node is decided."""
        self.rounds_counted += counted
        self.rounds_left_out += not counted

    def document(self) -> dict[str, Any]:
        """Its part of /status.json."""
        bits = 8 * self.payload_bytes / self.payload_values if self.payload_values else None
        return {
            "loss": self.loss,
            "rounds": {
                "trained": self.rounds_trained,
                "counted": self.rounds_counted,
                "left_out": self.rounds_left_out,
            },
            "samples": self.samples,
            "samples_late": self.samples_late,
            "tokens": self.tokens,
            "passes": asdict(self.passes),
            "payload": {
                "bytes": self.payload_bytes,
                "values": self.payload_values,
                "bits_per_value": bits,
            },
        }


@dataclass(slots=True)
class NodeStatus:
    """A node in words and numbers; `doing` says what it does now, `phase` the same in words."""

    peer_id: str
    name: str
    work: OwnWork = field(default_factory=OwnWork)
    doing: Doing = Doing.STARTING
    phase: str = "starting"
    finished: bool = False
    """Whether the coordinator said that the run is over."""
    pace: str = ""
    """Why rounds are not as long as the run file says, by the coordinator."""
    note: str = ""
    """Why the node does not count, or does less than it could; empty when all is well."""
    round: int = -1
    parameters: int = 0
    validation_loss: float | None = None
    """The newest that the coordinator told, or that this node measured; nats per token."""
    validation_round: int = -1
    """The round after which it was measured."""
    steps: int = 0
    """Length of the run now, as the coordinator told it; 0: it has not."""
    told: wire.HeartbeatReply = field(default_factory=wire.HeartbeatReply)
    """The coordinator's newest word."""
    state_digest: int | None = None
    resyncs: int = 0
    traffic: dict[str, int | None] = field(default_factory=dict)
    standing: OwnStanding = field(default_factory=OwnStanding)
    data: Callable[[], Mapping[str, Any]] = dict
    """Says where the training data come from, and what they wait for."""

    # ---- what happens: nothing else writes a field

    def says(self, phase: str) -> None:
        """The node does this now, in words."""
        self.phase = phase

    def does(self, doing: Doing, phase: str) -> None:
        """The node has begun a step."""
        self.doing, self.phase = doing, phase

    def notes(self, note: str) -> None:
        """The node does less than it could for this reason; empty: no longer."""
        self.note = note

    def reads(self, data: Callable[[], Mapping[str, Any]]) -> None:
        """`data` says where the training data come from, and what they wait for."""
        self.data = data

    def has_built(self, parameters: int) -> None:
        """The model is built, and has this number of parameters."""
        self.parameters = parameters

    def stands_at(self, round: int, digest: int) -> None:
        """The replica is at the state after this round; -1: genesis."""
        self.round, self.state_digest = round, digest

    def opened(self, opened: wire.RoundOpened) -> None:
        """A round was opened for this node."""
        reason = opened.reason
        self.note, self.pace = (reason, "") if opened.muted else ("", reason)
        self.standing.opened(opened)

    def decided(self, round: int, *, counted: bool) -> None:
        """A round with a payload of this node is decided."""
        self.work.decided(counted=counted)
        if counted:
            self.standing.counted(round)
        else:
            self.standing.left_out(round)

    def resynced(self, reason: str) -> None:
        """The state is discarded."""
        self.note = f"resynced: {reason}"
        self.resyncs += 1

    def finishes(self) -> None:
        """The coordinator said that the run is over."""
        self.finished = True

    def carried(self, traffic: dict[str, int | None]) -> None:
        """The bytes so far."""
        self.traffic = traffic

    def heard(self, reply: wire.HeartbeatReply) -> None:
        """The coordinator has told how far the run goes, how well it learns, and this node's part
        in it.
        """
        self.told, self.standing.told = reply, (reply.state, reply.reason)
        self.steps = reply.steps or self.steps
        if reply.HasField("validation_loss"):
            self.heard_validation(reply.validation_loss, reply.validation_round)

    def heard_validation(self, loss: float, round: int) -> None:
        """The state after a round has this validation loss."""
        if round >= self.validation_round:
            self.validation_loss, self.validation_round = loss, round

    def document(self) -> dict[str, Any]:
        """The document of /status.json."""
        return self.work.document() | {
            "peer_id": self.peer_id,
            "name": self.name,
            "phase": f"catches up: {self.phase}" if self.doing is Doing.BEHIND else self.phase,
            "finished": self.finished,
            "pace": self.pace,
            "note": self.note,
            "round": self.round,
            "parameters": self.parameters,
            "validation": {
                "loss": self.validation_loss,
                "round": None if self.validation_loss is None else self.validation_round,
            },
            "state_digest": f"{self.state_digest:016x}" if self.state_digest is not None else None,
            "resyncs": self.resyncs,
            "data": dict(self.data()),
            "traffic": dict(self.traffic),
        }


class _StatusCollector(Collector):
    """The record as Prometheus families, read at each scrape."""

    def __init__(self, status: NodeStatus) -> None:
        self._status = status
        self._traffic = MonotonicCounters()

    def collect(self) -> Iterator[Metric]:
        now, work = self._status, self._status.work
        info = GaugeMetricFamily(
            "lockstep_node_info", "1; the labels say which node it is.", labels=["peer", "name"]
        )
        info.add_metric([now.peer_id, now.name], 1)
        yield info
        yield _counter("rounds_trained", "Rounds in which this node did work.", work.rounds_trained)
        yield _counter(
            "rounds_counted", "Rounds whose commit holds this node's payload.", work.rounds_counted
        )
        text = "Rounds whose decision left this node's payload out."
        yield _counter("rounds_left_out", text, work.rounds_left_out)
        yield _counter("samples_trained", "Samples trained.", work.samples)
        yield _counter(
            "samples_late",
            "Samples trained before the round in front was applied.",
            work.samples_late,
        )
        yield _counter("tokens_trained", "Tokens predicted in training.", work.tokens)
        yield _counter("resyncs", "Times the state was discarded.", now.resyncs)
        yield _gauge("applied_round", "Newest round in the parameters; -1 at genesis.", now.round)
        yield _gauge("parameters", "Parameters of the model.", now.parameters)
        if work.loss is not None:
            yield _gauge("loss_nats_per_token", "Loss of the last round's samples.", work.loss)
        if now.validation_loss is not None:
            text = "Newest loss of the run on held-out samples, as this node knows it."
            yield _gauge("validation_loss", text, now.validation_loss)
        traffic = CounterMetricFamily(
            "lockstep_node_traffic_bytes", "Bytes on links.", labels=["kind", "direction"]
        )
        counts = self._traffic.update(now.traffic)
        for kind in ("payload", "catch_up", "control", "overhead"):
            for direction in ("up", "down"):
                name = f"{kind}_{direction}_bytes"
                if kind != "overhead" or name in counts:  # overhead may not be known
                    traffic.add_metric([kind, direction], counts.get(name, 0))
        yield traffic
        yield _counter(
            "duplicate_bytes",
            "Payload bytes that arrived and were of no use.",
            counts.get("duplicate_bytes", 0),
        )


def registry(status: NodeStatus) -> CollectorRegistry:
    """A registry with the node's numbers."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_StatusCollector(status))
    return collectors


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"lockstep_node_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lockstep_node_{name}", text, value=value)
