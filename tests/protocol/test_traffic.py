"""Counters for Prometheus, which takes one that falls for a restart."""

from protocol.traffic import MonotonicCounters


def test_no_counter_falls_while_its_figure_wavers_or_is_unknown() -> None:
    counters = MonotonicCounters()
    assert counters.update({"overhead": 10, "payload": 5}) == {"overhead": 10, "payload": 5}
    assert counters.update({"overhead": 4, "payload": 6}) == {"overhead": 10, "payload": 6}
    assert counters.update({"overhead": None, "payload": 7}) == {"overhead": 10, "payload": 7}


def test_a_figure_that_was_never_known_is_absent() -> None:
    assert MonotonicCounters().update({"overhead": None, "payload": 0}) == {"payload": 0}
