"""Finds the coordinator that an operator means, and the members and hosts in its words."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coordinator.machine.events.acts import is_key
from lockstep.exit_codes import UsageError
from lockstep.service.directory import pid_at_work
from protocol.border.networks import host_of, ip_of
from protocol.errors import SettingsError, UnavailableError

PREFIX_MIN = 4
"""Characters of an id that name a member."""


def at_work(directory: Path | None) -> Path:
    """The directory of the one coordinator at work here; `UnavailableError` for none, `UsageError`
    for several.
    """
    if directory is not None:
        return directory.expanduser()
    return _only([place for place in _here() if pid_at_work(place) is not None], "at work ")


def any_here(directory: Path | None) -> Path:
    """The directory of the one coordinator here, at work or not; errors as in `at_work`."""
    return directory.expanduser() if directory is not None else _only(_here(), "")


def key_of(text: str, members: Iterable[Mapping[str, Any]], also: str = "") -> str:
    """The key that a person means: all 32 characters, the first of a member's, or its name; `also`
    says what else would have been right.
    """
    word = text.strip()
    if is_key(word.lower()):
        return word.lower()
    rows = [(str(member["peer_id"]), str(member.get("name", ""))) for member in members]
    found = {key for key, name in rows if name == word}
    if not found and len(word) >= PREFIX_MIN:
        found = {key for key, _ in rows if key.startswith(word.lower())}
    if len(found) == 1:
        return found.pop()
    if found:
        raise SettingsError(
            f"expected one member, {word!r} names {len(found)}: give more characters of the id"
        )
    raise SettingsError(
        f"expected an id of 32 hexadecimal characters, or the first {PREFIX_MIN} or more of a "
        f"member's id, or a member's name{also}, found {word!r}: see `lockstep run members`"
    )


def target_of(text: str, members: Iterable[Mapping[str, Any]]) -> str:
    """The key or host that a person means; a host as the coordinator counts it: an IPv4 address, or
    the /64 network of an IPv6 address.
    """
    address = text.strip().partition("/")[0]
    ip = ip_of(address)
    if ip is None:
        return key_of(text, members, ", or an IP address")
    return host_of(f"ipv4:{ip}:0" if ip.version == 4 else f"ipv6:[{ip}]:0")


def _here() -> list[Path]:
    return sorted(path for path in Path().glob("*.coordinator") if path.is_dir())


def _only(found: list[Path], which: str) -> Path:
    if not found:
        raise UnavailableError(
            f"no coordinator is {which or ''}in this directory: name its own with --directory "
            "RUN.coordinator"
        )
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise UsageError(
            f"several coordinators are {which}here, name one with --directory: {names}"
        )
    return found[0]
