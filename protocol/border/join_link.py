"""The link that names a run: where its coordinator is, which run it is, and whose key it has.

    lockstep://HOST:PORT/RUN#KEY     RUN: 32 hexadecimal characters; KEY: the coordinator's ed25519
                                     key, base64 for URLs without padding (43 characters)
    lockstep://HOST:PORT, HOST:PORT  the coordinator that answers there, whichever it is
    plain://HOST:PORT/RUN#KEY        the same without TLS, for a network that is trusted
    lockstep://HOST:PORT/RUN?token=TOKEN#KEY
                                     with the secret that admits a node; whoever reads it may join

A node that got a whole link joins that run of that coordinator and no other: an address that
belongs to somebody else by now, or a machine on the way, is found out.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field, replace

from protocol.addresses import DEFAULT_PORT, parse_address, split_address
from protocol.border.networks import ip_of
from protocol.errors import RemoteProtocolError, SettingsError, VersionError
from protocol.handshake import KEY_BYTES
from protocol.ids import RunId
from protocol.limits import TOKEN_BYTES_MAX

_LINK = re.compile(
    r"((?P<scheme>lockstep|plain)://)?(?P<address>[^/#?]+)(/(?P<run>[^#?]*))?"
    r"(\?(?P<more>[^#]*))?(#(?P<key>.*))?"
)

_OTHER_SCHEME = re.compile(r"(?!lockstep://|plain://)[A-Za-z][A-Za-z0-9+.-]*:/")
"""Beginning of a link to something else, or of one that lost a character."""


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A link, or an address alone."""

    address: str
    """HOST:PORT."""
    run_id: RunId | None = None
    key: bytes | None = None
    """The coordinator's ed25519 key, 32 bytes."""
    plain: bool = False
    """Whether the link says that there is no TLS."""

    token: str = field(default="", repr=False)
    """The secret that admits a node; empty for none."""

    def with_token(self, token: str) -> "JoinLink":
        """The link with a token, if one is given, in place of its own. `SettingsError` for one that
        is none, or that the network would see.
        """
        return replace(self, token=_checked_token(token, self)) if token else self

    def token_over(self, *, secure: bool) -> str:
        """The token, where no one between can read it: over TLS, or on this machine."""
        return self.token if secure or is_loopback(self.address) else ""

    @property
    def may_be_plain(self) -> bool:
        """Whether a connection without TLS is permitted: the link says so, or no network lies
        between.
        """
        return self.plain or is_loopback(self.address)

    def text(self) -> str:
        """The link as people hand it on."""
        scheme = "plain" if self.plain else "lockstep"
        run = f"/{self.run_id}" if self.run_id else ""
        key = f"#{_key_text(self.key)}" if self.key else ""
        token = f"?token={self.token}" if self.token else ""
        return f"{scheme}://{self.address}{run}{token}{key}"

    def check(self, run_id: RunId, key: bytes, vouching: bytes | None) -> None:
        """`SettingsError` unless this is the run that the link names, and its coordinator has the
        key; `RemoteProtocolError` unless the key `vouching` for the connection is the
        coordinator's. None: no TLS.
        """
        if vouching is not None and vouching != key:
            raise RemoteProtocolError(
                f"{self.address}: expected TLS by the coordinator's own key "
                f"{_key_text(key)}, got it by {_key_text(vouching)}: another "
                "coordinator answers there, or another machine stands between"
            )
        if self.key is not None and self.key != key:
            raise SettingsError(
                f"{self.address}: expected the coordinator with the key {_key_text(self.key)}, "
                f"which the link names, found one with {_key_text(key)}: ask the "
                "operator for the present link; if it is the same, do not join from this network"
            )
        self.require_run(run_id)

    def require_run(self, found: str) -> None:
        """`SettingsError` unless the run that was found is the one that the link names, if any."""
        if self.run_id not in (None, found):
            raise SettingsError(
                f"{self.address}: expected run {self.run_id}, which the link names, found run "
                f"{found}: ask the operator for the present link"
            )


def parse_link(text: str) -> JoinLink:
    """The link that a person typed or pasted, maybe from the end of a sentence.

    Raises `SettingsError` for anything else, `VersionError` for one that says more than this
    release knows.
    """
    text = text.strip().lstrip("'\"`<(").rstrip("'\"`>.,;)")
    found = _LINK.fullmatch(text)
    if found is None or _OTHER_SCHEME.match(text):
        raise SettingsError(
            f"expected lockstep://HOST:PORT/RUN#KEY or HOST:PORT, found {text[:120]!r}"
        )
    run, key = found["run"] or None, found["key"] or None
    if run and not re.fullmatch(r"[0-9a-f]{32}", run):
        raise SettingsError(
            "expected a run of 32 lower-case hexadecimal characters after the port, found "
            f"{run[:80]!r}; copy the whole link, and quote it in a shell"
        )
    link = JoinLink(
        parse_address(found["address"], DEFAULT_PORT),
        RunId(run) if run else None,
        _parse_key(key) if key else None,
        found["scheme"] == "plain",
    )
    return link.with_token(_token_in(found["more"] or ""))


def split_token(text: str, token: str) -> tuple[str, str]:
    """(Link without its token, token): the token by itself wins over that of the link. Secrets do
    not belong where links are shown and logged. `SettingsError` as of `parse_link`.
    """
    link = parse_link(text)
    if not link.token:
        return text, link.with_token(token).token
    return replace(link, token="").text(), link.with_token(token).token


def _token_in(more: str) -> str:
    """The token in the part of a link between ? and #."""
    token = ""
    for part in more.split("&") if more else ():
        name, _, value = part.partition("=")
        if name != "token":
            raise VersionError(
                f"expected no more than a token after the ? of the link, found {name[:40]!r}, "
                "which this release of Lockstep does not know: update Lockstep"
            )
        token = value
    return token


def _checked_token(token: str, link: JoinLink) -> str:
    if not re.fullmatch(rf"[A-Za-z0-9._~-]{{1,{TOKEN_BYTES_MAX}}}", token):
        raise SettingsError(
            f"expected a token of 1 to {TOKEN_BYTES_MAX} letters, digits and . _ ~ -, found "
            "another text; copy it whole"
        )
    if link.plain and not is_loopback(link.address):
        raise SettingsError(
            f"expected a link with TLS beside a token, found plain://{link.address}, which would "
            "show the token to the network: ask the operator for a link with lockstep://"
        )
    return token


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is this machine itself."""
    host, _ = split_address(address)
    ip = ip_of(host)
    return host == "localhost" or (ip is not None and ip.is_loopback)


def _key_text(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def _parse_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"expected a key of 43 characters after #, found {text[:80]!r}; copy the whole link, "
            "and quote it in a shell"
        )
    return key
