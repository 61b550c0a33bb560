"""How long nobody has used this machine, as its operating system tells it.

    Linux     the last key on a console or terminal (its access time); a graphical session by
              xprintidle, where that is installed and the session is of X, else by logind's hint
    macOS     HIDIdleTime of ioreg, and the terminals
    Windows   GetLastInputInfo
    WSL       nothing: Linux does not see the keyboard of Windows

A desktop tells logind that it is idle when its screen goes blank; one that never does counts as in
use. A locked login screen counts as nobody.
"""

import ctypes
import glob
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

RUN_S = 5.0
"""Longest wait for a program that tells."""

GRAPHICAL = ("x11", "wayland", "mir")
"""Types of sessions whose input no terminal sees."""

UNKNOWN = (
    "when_idle: expected a system that tells when its person was last active, found no console "
    "(as in a container or WSL), or neither xprintidle nor logind for its screen; install "
    "xprintidle, or leave --when-idle out and name --hours"
)
"""The refusal where nothing tells."""

_TERMINALS = {
    "Linux": ("dev/tty[1-9]*", "dev/pts/[0-9]*"),
    "Darwin": ("dev/console", "dev/ttys[0-9]*"),
}
"""Consoles, and other terminals, below the root."""

_HID = re.compile(r'"HIDIdleTime"\s*=\s*(\d+)')
_PROPERTIES = ("Type", "Class", "State", "IdleHint", "IdleSinceHint", "Display")


def own_system() -> str:
    """The operating system: Linux, WSL, Darwin or Windows."""
    return "WSL" if "microsoft" in platform.release().lower() else platform.system()


def run_program(words: Sequence[str]) -> str:
    """The output of a program; empty when it is not there, fails or takes too long."""
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=RUN_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def typed_s(system: str = "", root: str = "/") -> list[float]:
    """Times, in seconds since 1970, of the last key on each terminal; none where the console is
    missing, as in a container, which sees its own terminals and not the machine's.
    """
    console, *others = _TERMINALS.get(system or platform.system(), ("",))
    consoles = glob.glob(root + console) if console else []
    times = []
    for path in [
        *consoles,
        *(path for each in others if consoles for path in glob.glob(root + each)),
    ]:
        try:
            times.append(os.stat(path).st_atime)
        except OSError:
            continue  # it has just been closed
    return times


def windows_ticks() -> tuple[int, int]:
    """Milliseconds since the start, of 32 bits: now, and at the last input."""

    class LastInput(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("ticks", ctypes.c_uint))

    last = LastInput(ctypes.sizeof(LastInput), 0)
    windows = ctypes.windll  # type: ignore[attr-defined]
    if not windows.user32.GetLastInputInfo(ctypes.byref(last)):
        raise OSError("GetLastInputInfo failed")
    return int(windows.kernel32.GetTickCount()), int(last.ticks)


@dataclass(frozen=True, slots=True)
class Presence:
    """Reads the idle time. The fields are the operating system's, or a test's."""

    system: str = field(default_factory=own_system)
    run: Callable[[Sequence[str]], str] = run_program
    typed_s: Callable[[], Sequence[float]] = typed_s
    ticks: Callable[[], tuple[int, int]] = windows_ticks
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock_s: Callable[[], float] = time.time
    """Seconds since 1970."""

    def idle_s(self) -> float | None:
        """Seconds since somebody used this machine; None where nothing tells. Blocks."""
        if self.system in ("Windows", "WSL"):
            return self._windows_s() if self.system == "Windows" else None
        known = [self._macos_s()] if self.system == "Darwin" else self._linux_s()
        if None in known:
            return None
        now_s = self.clock_s()
        found = [each for each in known if each is not None]
        found += [max(0.0, now_s - typed) for typed in self.typed_s()]
        return min(found, default=None)

    def _windows_s(self) -> float | None:
        try:
            now, last = self.ticks()
        except (OSError, AttributeError):
            return None
        return ((now - last) & 0xFFFFFFFF) / 1000

    def _macos_s(self) -> float | None:
        found = _HID.search(self.run(("ioreg", "-c", "IOHIDSystem", "-d", "4")))
        return int(found[1]) / 1e9 if found else None

    def _linux_s(self) -> list[float | None]:
        """Idle times of the screens; a None among them where a screen cannot be judged."""
        wayland, display = (
            self.environment.get(name, "") for name in ("WAYLAND_DISPLAY", "DISPLAY")
        )
        own = self.run(("xprintidle",)).strip() if display and not wayland else ""
        own_s = int(own) / 1000 if own.isdecimal() else None
        screens = self._sessions(display if own_s is not None else "")
        if screens is None:
            screens = []
            if own_s is None and (display or wayland):
                return [None]
        return [*screens, *([own_s] if own_s is not None else [])]

    def _sessions(self, judged: str) -> list[float | None] | None:
        """Idle times of the graphical sessions that logind knows, except for that of the display
        that is `judged` already; None without logind.
        """
        listed = self.run(("loginctl", "list-sessions", "--no-legend"))
        if not listed and not self.run(("loginctl", "show")):
            return None
        names = [line.split()[0] for line in listed.splitlines() if line.split()]
        if not names:
            return []
        asked = [word for name in _PROPERTIES for word in ("-p", name)]
        idle = list[float | None]()
        for block in self.run(("loginctl", "show-session", *names, *asked)).split("\n\n"):
            told = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            if (
                told.get("Type") in GRAPHICAL
                and told.get("Class") == "user"
                and told.get("State") != "closing"
                and not (judged and told.get("Display") == judged)
            ):
                idle.append(self._hinted_s(told))
        return idle

    def _hinted_s(self, told: Mapping[str, str]) -> float:
        """Idle time by the hint of a session."""
        since = told.get("IdleSinceHint", "")
        if told.get("IdleHint") != "yes":
            return 0.0
        return max(0.0, self.clock_s() - int(since) / 1e6) if since.isdecimal() else math.inf
