"""Addresses as people type them: HOST:PORT, [IPV6]:PORT, lockstep://HOST:PORT."""

import errno
import re

from protocol.errors import AddressInUseError, SettingsError

DEFAULT_PORT = 50700
"""Port of a coordinator when none is named."""

PORT_MAX = 65535

URL_CHARACTERS_MAX = 256
"""Characters of the address of a page."""

PUBLISHED_URL = r"""^((https?|hf|s3|gs)://[!"$->@-~]+)?$"""
"""Addresses of published data and models, or none: printable ASCII without ? and #."""

_PAGE_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[!#-;=-~]*)?")
"""Addresses of pages that a terminal may show: printable ASCII without quotes and brackets of
marks, and without a login."""

_HOST_PORT = re.compile(
    r"((?P<name>[A-Za-z0-9._-]+)|\[(?P<ipv6>[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%[A-Za-z0-9._-]+)?)\])"
    r":(?P<port>[0-9]{1,5})"
)


def check_listen(text: str, setting: str = "listen") -> None:
    """`SettingsError` unless this setting is HOST:PORT, with its port."""
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > PORT_MAX:
        raise SettingsError(f"{setting}: expected HOST:PORT, found {text!r}")
    parse_address(text)


def check_advertise(addresses: tuple[str, ...]) -> None:
    """`SettingsError` unless each is HOST:PORT or a libp2p address, which begins with a slash and
    is judged by its transport.
    """
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
    valid_port = re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= PORT_MAX
    if (
        not bare
        or any(character.isspace() or character in "/@?#" for character in bare)
        or not valid_port
    ):
        raise SettingsError(f"expected HOST:PORT or lockstep://HOST:PORT, found {text!r}")
    if (":" in bare) != bracketed:
        raise SettingsError(f"expected an IPv6 address in brackets, [ADDRESS]:PORT, found {text!r}")
    return f"{host}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT or [IPV6]:PORT, the host without brackets; `SettingsError` for
    anything else.
    """
    found = _HOST_PORT.fullmatch(address)
    if found is None or int(found["port"]) > PORT_MAX:
        raise SettingsError(
            f"expected HOST:PORT or [IPV6]:PORT, such as 192.0.2.7:50701, found {address[:80]!r}"
        )
    return found["name"] or found["ipv6"], int(found["port"])


def with_port(address: str, port: int) -> str:
    """HOST:PORT with `port` where the address names port 0."""
    host, _, named = address.rpartition(":")
    return address if int(named) else f"{host}:{port}"


def listen_error(
    error: OSError, listen: str, option: str = "--listen"
) -> AddressInUseError | SettingsError:
    """What to raise where the system refused an address to listen at, with the way out."""
    cannot = f"cannot listen on {listen} ({option})"
    match error.errno:
        case errno.EADDRINUSE:
            return AddressInUseError(
                f"{cannot}: the port belongs to another process; stop that one, or choose another "
                "port (0 takes a free one)"
            )
        case errno.EACCES:
            return SettingsError(
                f"{cannot}: this account may not take the port; those below 1024 need rights, "
                "choose a higher one"
            )
        case errno.EADDRNOTAVAIL:
            return SettingsError(
                f"{cannot}: the address is not this machine's; 0.0.0.0 stands for all that it has"
            )
    return SettingsError(f"{cannot}: {error.strerror or error}")


def is_page(url: str) -> bool:
    """Whether a text is the address of a page, which a terminal may show."""
    return len(url) <= URL_CHARACTERS_MAX and _PAGE_URL.fullmatch(url) is not None


def has_login(url: str) -> bool:
    """Whether a URL has a name or a password before its host, for everybody who reads it."""
    return "@" in url.partition("://")[2].partition("/")[0]


def is_plain_path(text: str) -> bool:
    r"""Whether a text names a place on the machine that reads it: no URL, no share of another
    machine (\\HOST\SHARE, to which Windows shows its user's login), nothing unprintable.
    """
    head = re.split(r"[/\\]", text, maxsplit=1)[0]
    is_drive = re.fullmatch("[A-Za-z]:", head) is not None
    is_share = text[:2].replace("\\", "/") == "//"
    return text.isprintable() and not is_share and (is_drive or ":" not in head)
