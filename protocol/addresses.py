"""Addresses as people type them: HOST:PORT, [IPV6]:PORT, lockstep://HOST:PORT."""

from protocol.errors import SettingsError

DEFAULT_PORT = 50700
"""Port of a coordinator when none is named."""


def check_listen(text: str) -> None:
    """`SettingsError` unless a setting named listen is HOST:PORT, with its port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"listen: expected HOST:PORT, found {text!r}")
    parse_address(text)


def check_advertise(addresses: tuple[str, ...]) -> None:
    """`SettingsError` unless all of them are HOST:PORT or libp2p's, which begin with a slash and are
    judged by its transport."""
    for address in addresses:
        if not address.startswith("/"):
            parse_address(address)


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> str:
    """HOST:PORT of the text that a person typed; `SettingsError` for anything else."""
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
