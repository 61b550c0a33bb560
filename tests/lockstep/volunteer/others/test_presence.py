"""The last input of a person is read where the operating system tells it, and only there."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lockstep.volunteer.others import presence
from lockstep.volunteer.others.presence import Presence, run_program, typed_s

NOW_S = 1_800_000_000.0
LONG_AGO = [NOW_S - 7200.0]


def session(**told: str) -> str:
    usual = {"Type": "wayland", "Class": "user", "State": "active", "IdleHint": "no"}
    usual |= {"IdleSinceHint": "0", "Display": ""}
    return "".join(f"{name}={value}\n" for name, value in (usual | told).items())


def system(*sessions: str, xprintidle: str = "", logind: bool = True) -> Callable[..., str]:
    """Programs of a Linux with these sessions."""
    names = [f"c{number}" for number in range(len(sessions))]

    def run(words: Sequence[str]) -> str:
        match list(words):
            case ["xprintidle"]:
                return xprintidle
            case ["loginctl", "list-sessions", *_] if logind:
                return "".join(f"{name} 1000 ann seat0 tty2\n" for name in names)
            case ["loginctl", "show"] if logind:
                return "EnableWallMessages=no\n"
            case ["loginctl", "show-session", *asked] if logind:
                assert asked[: len(names)] == names
                return "\n".join(sessions)
        return ""

    return run


def linux(
    run: Callable[..., str], typed: Sequence[float] = LONG_AGO, **environment: str
) -> float | None:
    return Presence(
        "Linux", run, lambda: typed, environment=environment, clock_s=lambda: NOW_S
    ).idle_s()


def test_a_server_without_a_screen_tells_by_its_terminals() -> None:
    assert linux(system(), [NOW_S - 90, NOW_S - 3000]) == 90
    assert linux(system(logind=False), [NOW_S - 90]) == 90, "without logind too"
    assert linux(system(), [NOW_S + 60]) == 0, "a clock that was set back"


def test_a_desktop_in_use_is_in_use_although_no_terminal_is() -> None:
    assert linux(system(session()), WAYLAND_DISPLAY="wayland-0") == 0
    assert linux(system(session(Type="x11", Display=":0"))) == 0, "seen from a service, too"


def test_a_desktop_that_went_idle_tells_since_when() -> None:
    since = str(int((NOW_S - 400) * 1e6))
    assert linux(system(session(IdleHint="yes", IdleSinceHint=since))) == 400


def test_the_person_who_is_most_active_counts() -> None:
    since = str(int((NOW_S - 400) * 1e6))
    idle = session(IdleHint="yes", IdleSinceHint=since)
    assert linux(system(idle, session(Type="x11"))) == 0
    assert linux(system(idle), [NOW_S - 10]) == 10


def test_xprintidle_is_believed_about_its_own_screen_and_no_other() -> None:
    own = session(Type="x11", Display=":0")
    assert linux(system(own, xprintidle="123456\n"), DISPLAY=":0") == 123.456
    other = session(Type="x11", Display=":1")
    assert linux(system(own, other, xprintidle="123456\n"), DISPLAY=":0") == 0
    under_wayland = system(session(), xprintidle="999000\n")
    assert linux(under_wayland, DISPLAY=":0", WAYLAND_DISPLAY="wayland-0") == 0


@pytest.mark.parametrize("told", [{"Class": "greeter"}, {"State": "closing"}, {"Type": "tty"}])
def test_a_session_of_nobody_at_a_screen_is_passed_over(told: dict[str, str]) -> None:
    assert linux(system(session(**told))) == 7200


def test_a_screen_that_nothing_judges_is_not_guessed_at() -> None:
    assert linux(system(logind=False), DISPLAY=":0") is None
    assert linux(system(logind=False), WAYLAND_DISPLAY="wayland-0") is None
    assert linux(system(logind=False), []) is None, "nor is a machine without any terminal"


def test_under_wsl_the_keyboard_of_windows_is_not_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence.platform, "release", lambda: "6.6.87-microsoft-standard-WSL2")
    assert Presence(presence.own_system(), typed_s=lambda: LONG_AGO).idle_s() is None


def test_macos_tells_by_its_input_devices_and_terminals() -> None:
    told = '    | |   "HIDIdleTime" = 4500000000\n    | |   "HIDParameters" = {}\n'
    asked: list[Sequence[str]] = []

    def ioreg(words: Sequence[str]) -> str:
        asked.append(words)
        return told

    def idle_s(typed: float) -> float | None:
        return Presence("Darwin", ioreg, lambda: [typed], clock_s=lambda: NOW_S).idle_s()

    assert idle_s(NOW_S - 100) == 4.5
    assert idle_s(NOW_S - 2) == 2
    assert asked[0][0] == "ioreg"
    told = ""
    assert idle_s(NOW_S) is None


def test_windows_tells_by_ticks_that_begin_again_after_49_days() -> None:
    assert Presence("Windows", ticks=lambda: (90_000, 30_000)).idle_s() == 60
    assert Presence("Windows", ticks=lambda: (1_000, 2**32 - 1_000)).idle_s() == 2

    def failing() -> tuple[int, int]:
        raise OSError("no desktop")

    assert Presence("Windows", ticks=failing).idle_s() is None


def test_a_container_s_own_terminals_are_not_taken_for_the_machine_s(tmp_path: Path) -> None:
    (tmp_path / "dev" / "pts").mkdir(parents=True)
    (tmp_path / "dev" / "pts" / "0").touch()
    (tmp_path / "dev" / "tty").touch()
    assert typed_s("Linux", f"{tmp_path}/") == []
    (tmp_path / "dev" / "tty1").touch()
    os.utime(tmp_path / "dev" / "tty1", (1000, 2000))
    times = typed_s("Linux", f"{tmp_path}/")
    assert (len(times), min(times)) == (2, 1000), "the times of access, not those of output"
    assert typed_s("Plan9") == []


def test_this_machine_is_read_without_an_error() -> None:
    idle_s = Presence().idle_s()
    assert idle_s is None or idle_s >= 0
    assert all(isinstance(each, float) for each in typed_s())


def test_a_program_that_is_not_there_or_fails_tells_nothing() -> None:
    assert run_program(("/nonexistent/lockstep",)) == ""
    assert run_program(("false",)) == ""
    assert run_program(("echo", "yes")) == "yes\n"
