"""The numbers of a relay for Prometheus, read from its status at each scrape."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.traffic import MonotonicCounters


def registry(status: Callable[[], dict[str, Any]]) -> CollectorRegistry:
    """A registry with the numbers of the document that `status` returns."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_RelayCollector(status))
    return collectors


class _RelayCollector(Collector):
    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        self._traffic = MonotonicCounters()

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        info = GaugeMetricFamily(
            "lockstep_relay_info", "1; the label says which relay it is.", labels=["peer"]
        )
        info.add_metric([status["peer_id"]], 1)
        yield info
        yield _gauge("links", "Open links.", len(status["links"].get("open", ())))
        yield _gauge("round", "Newest round that was decided.", status["round"])
        yield _gauge("payload_log_bytes", "Payloads on disk.", status["payloads"]["bytes"])
        archive = status["archive"]
        yield _gauge("archive_round", "Newest round of the archive.", archive.get("round", -1))
        yield _gauge(
            "archive_missing", "Payloads that nobody gave the archive.", archive.get("missing", 0)
        )
        yield _gauge(
            "archive_rounds_dropped",
            "Rounds that the archive had no room for, since it was started.",
            archive.get("rounds_dropped", 0),
        )
        traffic = CounterMetricFamily(
            "lockstep_relay_traffic_bytes", "Bytes on links.", labels=["kind", "direction"]
        )
        for name, count in self._traffic.update(status["traffic"]).items():
            kind, _, direction = name.removesuffix("_bytes").rpartition("_")
            if direction in ("up", "down"):
                traffic.add_metric([kind, direction], count)
        yield traffic


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lockstep_relay_{name}", text, value=value)
