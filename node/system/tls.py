"""TLS without an authority, at both ends of a gRPC channel (`protocol.border.certificates`).

A server makes a key and a certificate at its start, for which its ed25519 key vouches. A client
asks for the certificate first, over a connection of its own, and then opens a channel that trusts
this certificate alone; a machine on the way that shows another one has another key.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from border.farewell import CROWDED, CROWDED_ALERT
from protocol.addresses import split_address
from protocol.border.certificates import NAME, certificate, vouching_key
from protocol.border.join_link import JoinLink
from protocol.errors import RemoteProtocolError, UnavailableError

VALID_FROM, VALID_UNTIL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""A certificate is valid at any time that a clock can show, here or at a client: it proves a key,
not a time, and its owner makes another at each start. Small computers begin in 1970."""

CHANNEL_OPTIONS: Final = (("grpc.ssl_target_name_override", NAME),)
"""Options of a client's channel: the name in the certificate is nobody's."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificate that a server showed, and the ed25519 key that vouches for it."""

    pem: bytes
    key: bytes

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel that trusts this certificate alone."""
        return grpc.ssl_channel_credentials(root_certificates=self.pem)


def server_credentials(key: Ed25519PrivateKey) -> grpc.ServerCredentials:
    """Credentials of a server, made now, for which `key` vouches."""
    channel_key = ec.generate_private_key(ec.SECP256R1())
    pem = certificate(key, channel_key, VALID_FROM, VALID_UNTIL)
    private = channel_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return grpc.ssl_server_credentials([(private, pem)])


def ask_certificate(address: str, timeout_s: float) -> Shown | None:
    """The certificate of the server at HOST:PORT; None when it answers, but not in TLS.

    Raises `UnavailableError` when nobody answers in time, `RemoteProtocolError` for a certificate
    that no key vouches for.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            try:
                with _unchecked().wrap_socket(connection) as secure:
                    der = secure.getpeercert(binary_form=True) or b""
            except ssl.SSLError as error:
                if _speaks_no_tls(error):
                    return None
                raise
    except OSError as error:
        raise UnavailableError(f"cannot reach {address}: {in_words(error)}") from None
    return _shown(der)


async def fetch_certificate(address: str, timeout_s: float, who: str = "") -> Shown | None:
    """`ask_certificate` on an event loop. `who`, such as "a peer at ", is for the error."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=_unchecked())
    except OSError as error:  # TimeoutError and what TLS says among them
        if isinstance(error, ssl.SSLError) and _speaks_no_tls(error):
            return None
        raise UnavailableError(f"cannot reach {who}{address}: {in_words(error)}") from None
    try:
        return _shown(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        writer.transport.abort()


def judged(link: JoinLink, shown: Shown | None) -> Shown | None:
    """The certificate, if a channel to the coordinator may trust it; None for a permitted plain
    text. `RemoteProtocolError` otherwise.
    """
    if shown is None and not link.may_be_plain:
        raise RemoteProtocolError(
            f"expected a coordinator with TLS at {link.address}, found a server without; if it is "
            f"meant to be so, on a network that you trust, say plain://{link.address}"
        )
    if shown and link.key not in (None, shown.key):
        raise RemoteProtocolError(
            f"{link.address}: expected a coordinator whose TLS has the key that the link names, "
            "got another key: the link is old, or another machine stands between"
        )
    return shown


def _unchecked() -> ssl.SSLContext:
    """TLS that takes any certificate: the caller judges it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _speaks_no_tls(error: ssl.SSLError) -> bool:
    """Whether the other end has answered, and not in TLS; a gate that is crowded closes."""
    return not isinstance(error, ssl.SSLEOFError) and error.reason != CROWDED_ALERT


def _shown(der: bytes) -> Shown:
    return Shown(ssl.DER_cert_to_PEM_cert(der).encode(), vouching_key(der))


def in_words(error: OSError) -> str:
    """Why a connection could not be opened, for people."""
    if isinstance(error, socket.gaierror):
        return "no address is known for this name"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused: nothing listens on this port"
    if isinstance(error, TimeoutError):
        return "nobody answered in time"
    if isinstance(error, ssl.SSLError) and error.reason == CROWDED_ALERT:
        return CROWDED
    if isinstance(error, ConnectionError | ssl.SSLEOFError):
        return "the connection was closed at once: the port is crowded, or somebody else's"
    return error.strerror or str(error)
