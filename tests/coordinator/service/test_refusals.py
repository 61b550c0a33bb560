"""Refusals of the run file: counted by node, bounded, and safe to print."""

from coordinator.service.refusals import NODES_KEPT, REASON_MAX, RunRefusals
from protocol.ids import PeerId
from tests.coordinator.machine.driver import A, B, C


def test_each_node_counts_once_and_the_last_one_is_quoted() -> None:
    refusals = RunRefusals()
    assert (refusals.words, refusals.last) == ("", "")
    refusals.note(A, "no memory")
    assert refusals.words == "1 node refused this run file; the last said: no memory"
    for peer in (B, C, B):
        refusals.note(peer, f"heads do not fit, says {peer[-1]}")
    expected = "3 nodes refused this run file; the last said: heads do not fit, says 2"
    assert refusals.words == expected


def test_a_node_that_joins_after_all_is_forgotten() -> None:
    refusals = RunRefusals()
    refusals.note(A, "no memory")
    refusals.forget(A)
    refusals.forget(B)
    assert (len(refusals), refusals.words) == (0, "")


def test_strangers_cannot_fill_memory_or_write_to_a_terminal() -> None:
    refusals = RunRefusals()
    for number in range(NODES_KEPT + 9):
        refusals.note(PeerId(f"{number:032x}"), "\x1b[2J\u202ered\r\n" + "x" * 10_000)
    assert len(refusals) == NODES_KEPT
    assert refusals.last.startswith("[2J red xxx")
    assert len(refusals.last) == REASON_MAX
    assert refusals.last.isprintable()
