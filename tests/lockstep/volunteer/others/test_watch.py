"""What no limit asks for is not read, and a limit that cannot be kept is refused at once."""

import pytest

from lockstep.volunteer.others.quiet import QuietLimits
from lockstep.volunteer.others.watch import OthersWatch, Readers
from protocol.errors import SettingsError


def unread() -> float | None:
    raise AssertionError("expected no reading that no limit asks for")


def readers(idle_s: float | None = 3.0, *, knows_load: bool = True) -> Readers:
    return Readers(lambda: idle_s, lambda: 0.0, lambda: None, lambda: knows_load, lambda: 0.0)


async def test_without_limits_nothing_is_read() -> None:
    def unmade() -> Readers:
        raise AssertionError("expected no readers without a limit")

    watch = OthersWatch(QuietLimits(), unmade)
    await watch.look()
    assert watch.reason() == ""


async def test_only_what_a_limit_asks_for_is_read() -> None:
    watch = OthersWatch(QuietLimits(when_idle=1), lambda: Readers(lambda: 3.0, unread, unread))
    await watch.look()
    assert watch.reason().startswith("you are using this machine")


@pytest.mark.parametrize(
    ("limits", "given", "words"),
    [
        (
            QuietLimits(when_idle=1),
            readers(None),
            "install xprintidle, or leave --when-idle out and name",
        ),
        (QuietLimits(other_load=5), readers(knows_load=False), "leave --other-load out"),
    ],
)
def test_a_limit_on_what_the_system_does_not_tell_is_refused(
    limits: QuietLimits, given: Readers, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        OthersWatch(limits, lambda: given)
    watch = OthersWatch(QuietLimits(), lambda: given)
    with pytest.raises(SettingsError, match=words):
        watch.limit(limits)
    assert watch.reason() == "", "the limits of before stay"


async def test_a_limit_may_come_and_go_while_the_node_runs() -> None:
    watch = OthersWatch(QuietLimits(), readers)
    watch.limit(QuietLimits(when_idle=2))
    assert watch.reason() == "", "nothing was seen yet"
    await watch.look()
    assert "goes on after 2 quiet minutes" in watch.reason()
    watch.limit(QuietLimits())
    assert watch.reason() == ""
