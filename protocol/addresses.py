"""Addresses as people type them: HOST:PORT, [IPV6]:PORT, lockstep://HOST:PORT."""

from protocol.errors import SettingsError

DEFAULT_PORT = 50700
"""Port of a coordinator when none is named."""


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> str:
    """HOST:PORT of what a person typed; `SettingsError` for anything else."""
    address = text.strip().removeprefix("lockstep://").removesuffix("/")
    bracketed = address.startswith("[")
    host, colon, port = address.rpartition(":")
    if not colon or (bracketed and port.endswith("]")):
        host, port = address, str(default_port)
    if bracketed != host.endswith("]"):
        raise SettingsError(
            f"expected brackets around the whole IPv6 address, [ADDRESS]:PORT, found {text!r}"
        )
    bare = host.removeprefix("[").removesuffix("]")
    valid_port = port.isascii() and port.isdecimal() and int(port) <= 65535
    if (
        not bare
        or any(character.isspace() or character in "/@?#" for character in bare)
        or not valid_port
    ):
        raise SettingsError(f"expected HOST:PORT or lockstep://HOST:PORT, found {text!r}")
    if (":" in bare) != bracketed:
        raise SettingsError(f"expected an IPv6 address in brackets, [ADDRESS]:PORT, found {text!r}")
    return f"{host}:{int(port)}"
