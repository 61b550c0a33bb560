"""A node's place in its run, in words with the reason."""

import pytest

from node.standing import OPEN_MAX, Doing, OwnStanding
from protocol import wire_pb2 as wire


def opened(round: int, *, bell_ms: int, publish_by_ms: int, muted: str = "") -> wire.RoundOpened:
    shares = [wire.Share(first=0, count=5), wire.Share(first=9, count=3)]
    return wire.RoundOpened(
        round=round,
        bell_ms=bell_ms,
        publish_by_ms=publish_by_ms,
        shares=shares,
        muted=bool(muted),
        reason=muted,
    )


def working(round: int = 5, muted: str = "") -> OwnStanding:
    standing = OwnStanding()
    standing.opened(opened(round, bell_ms=4_000, publish_by_ms=6_000, muted=muted))
    return standing


def test_it_counts_when_a_commit_holds_its_payload() -> None:
    standing = working()
    assert standing.words(Doing.WORKING, "trains round 5", "")[0] == "training"
    standing.announced(5, 4_100, 4_000)
    standing.counted(5)
    assert standing.words(Doing.WAITING, "waits for a round", "") == ("counted", "")


def test_a_late_payload_is_called_late_by_its_time_and_its_work() -> None:
    standing = working()
    standing.announced(5, 7_200, 7_100)
    standing.left_out(5)
    assert standing.words(Doing.WAITING, "waits for a round", "") == (
        "late",
        "by 1.2 s in round 5: its work took 7.1 s",
    )


def test_a_punctual_payload_that_nobody_had_is_the_upload_s_fault() -> None:
    standing = working()
    standing.announced(5, 4_100, 4_000)
    standing.left_out(5)
    state, reason = standing.words(Doing.WAITING, "waits for a round", "")
    assert state == "left out"
    assert "its upload is the limit" in reason


def test_a_skipped_round_is_nobody_s_fault() -> None:
    standing = working()
    standing.announced(5, 9_000, 9_000)
    standing.skipped(5)
    standing.left_out(5)
    state, reason = standing.words(Doing.WAITING, "waits for a round", "")
    assert (state, reason.endswith("its samples are trained again")) == ("skipped", True)


def test_a_skipped_round_without_work_of_this_node_promises_nothing() -> None:
    standing = working()
    standing.skipped(5)
    state, reason = standing.words(Doing.WAITING, "waits for a round", "")
    assert (state, reason) == ("skipped", "round 5 counts for nobody")


def test_a_skipped_round_that_it_takes_from_the_log_is_not_its_own() -> None:
    standing = OwnStanding()
    standing.skipped(27)
    assert standing.words(Doing.WAITING, "waits for a round", "") == (
        "waiting",
        "for the next round",
    )
    standing.opened(opened(38, bell_ms=4_000, publish_by_ms=6_000))
    standing.skipped(28)
    assert standing.words(Doing.WORKING, "trains round 38", "") == (
        "training",
        "its first round since it joined is under way",
    )
    standing.counted(38)
    standing.skipped(41)  # it was away
    assert standing.words(Doing.WAITING, "waits for a round", "") == ("counted", "")


def test_rounds_whose_decision_never_came_are_not_kept_for_ever() -> None:
    standing = OwnStanding()
    for round in range(OPEN_MAX + 1):
        standing.opened(opened(round, bell_ms=4_000, publish_by_ms=6_000))
    standing.skipped(0)
    assert standing.words(Doing.WORKING, "trains a round", "")[0] == "training"
    standing.skipped(1)
    assert standing.words(Doing.WORKING, "trains a round", "")[0] == "skipped"


def test_a_muted_node_knows_why_and_when_it_counts_again() -> None:
    why = "late in 4 rounds: counted again after a punctual one"
    standing = working(muted=why)
    assert standing.words(Doing.WORKING, "trains round 5", "") == ("muted", why)
    standing.announced(5, 9_000, 9_000)
    standing.left_out(5)
    assert standing.words(Doing.WAITING, "waits for a round", "") == ("muted", why)
    standing.opened(opened(6, bell_ms=1, publish_by_ms=2))
    assert standing.words(Doing.WORKING, "trains round 6", "")[0] == "training"


def test_what_the_coordinator_told_holds_until_a_round_opens() -> None:
    standing = OwnStanding()
    standing.told = ("waiting", "waiting for members: 1 of 2 are ready")
    assert standing.words(Doing.WAITING, "waits for a round", "") == standing.told
    standing.opened(opened(0, bell_ms=4_000, publish_by_ms=6_000))
    assert standing.words(Doing.WORKING, "trains round 0", "")[0] == "training"
    standing.told = ("held", "its state after round 3 was wrong")
    assert standing.words(Doing.WAITING, "waits for a round", "") == standing.told


@pytest.mark.parametrize("phase", ["round 3 of 90", "discards its state", "fetches a snapshot"])
def test_a_node_behind_the_log_catches_up_whatever_was_before(phase: str) -> None:
    assert working().words(Doing.BEHIND, phase, "") == ("catching up", phase)


def test_a_lost_session_comes_first() -> None:
    assert working().words(
        Doing.WORKING, "trains round 5", "lost the coordinator; reconnecting"
    ) == (
        "no session",
        "lost the coordinator; reconnecting",
    )


def test_before_anything_it_starts() -> None:
    assert OwnStanding().words(Doing.STARTING, "opens its data", "") == (
        "starting",
        "opens its data",
    )


def test_the_bell_is_told_while_a_round_is_in_work() -> None:
    standing = working()
    assert standing.bell_in_ms(1_000) == 3_000
    assert standing.share == 8
    standing.announced(5, 2_000, 2_000)
    assert standing.bell_in_ms(2_000) is None
    assert OwnStanding().bell_in_ms(0) is None


def test_a_node_that_applies_the_newest_decision_keeps_its_state() -> None:
    assert working().words(Doing.WORKING, "applies round 3", "") == working().words(
        Doing.WORKING, "trains round 4", ""
    )
    assert working().words(Doing.WORKING, "applies round 3", "")[0] != "catching up"
