"""The numbers of an auditor for Prometheus, read from its status at each scrape."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

GAUGES = {
    "round": "Round of the last commit that was replayed.",
    "behind_rounds": "Rounds up to the newest commit that are not replayed.",
    "keeps_up": "1 while the replay keeps up with the run, else 0.",
    "rounds_different": "Rounds whose replayed state differs from the members'.",
    "rounds_unreported": "Rounds whose state no majority reported in time.",
    "work_round": "Newest round of which work was computed again; -1 before the first.",
    "work_suspects": "Authors that are audited before others.",
    "sums_waiting": "Ranges that wait to be added again.",
    "copies_alike": "Pairs of authors whose payloads of one round were alike.",
    "halted": "1 when the chain of commits does not hold and the audit has ended, else 0.",
}
"""Meaning of each gauge, by its field of the document."""

COUNTERS = {
    "rounds_replayed": "Rounds that were replayed.",
    "rounds_equal": "Rounds whose replayed state equals the members'.",
    "rounds_unread": "Rounds with sums whose authors were not audited: a part was not there.",
    "payloads_ignored": "Committed payloads that did not decode, or were not what they should be.",
    "payloads_void": "Committed payloads that the chain makes void.",
    "work_audits": "Payloads whose work was computed again and judged.",
    "work_seconds": "Seconds that this took, since the auditor's start.",
    "work_verdicts": "Authors found not to do their work.",
    "sums_added": "Ranges that were added again, since the auditor's start.",
    "sums_unadded": "Ranges that were to be added again and of which a part was not there.",
    "sums_wrong": "Signatures found under wrong sums.",
    "copies_payloads": "Payloads that were compared with those before them.",
    "copies_verdicts": "Authors found to copy.",
}
"""Meaning of each counter, by its field of the document."""


class AuditCollector(Collector):
    """The numbers of the document that `document()` returns; of a list its length."""

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        known = _flat(self._document())
        for name, text in GAUGES.items():
            if name in known:
                value = float(bool(known[name]) if name == "halted" else known[name])
                yield GaugeMetricFamily(f"lockstep_auditor_{name}", text, value=value)
        for name, text in COUNTERS.items():
            if name in known:
                yield CounterMetricFamily(f"lockstep_auditor_{name}", text, value=known[name])


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the fields of its parts `work`, `copies` and `sums` beside the others."""
    parts = {
        f"{part}_{name}": len(value) if isinstance(value, list) else value
        for part in ("work", "copies", "sums")
        for name, value in document.get(part, {}).items()
    }
    return {**document, **parts}
