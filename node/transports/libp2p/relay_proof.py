"""A transport that is a libp2p relay too: it carries circuits between nodes that cannot dial each
other, without torch.

    start a daemon --> two short-lived nodes send each other `PROOF_BYTES` through it --> announce
          ^                  cut off? start another daemon, a few times        |
          +--------------------------------------------------------------------+

The daemon sets its relay up twice, once with our limits and once with libp2p's own, which silently
cut every circuit at 128 KB. Which one stays is a race inside the daemon, lost in about one start of
four; no flag decides it. So no relay is announced before it has proven itself, and new daemons are
tried until one does. A bad one already tells its limit when it grants a reservation, before any
byte is sent.
"""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import PIPE_BYTES_MAX, Pipe
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
from protocol.errors import UnavailableError

PROOF_BYTES = 2 * PIPE_BYTES_MAX
"""Bytes sent through a relay to prove it: sixteen times as many as a bad one carries."""

PROOF_TIMEOUT_S = 30
"""Longest time for a proof, on a busy machine."""


def make_relay(key: Ed25519PrivateKey, settings: Libp2pSettings) -> Libp2pTransport:
    """A public transport that carries circuits for others too; not started yet."""
    trusted = settings.p2pd_sha256
    proof = partial(prove, p2pd_sha256=trusted) if trusted else prove
    return Libp2pTransport(key, replace(settings, public=True), proof=proof)


async def prove(relay: str, p2pd_sha256: str = "") -> None:
    """Send `PROOF_BYTES` both ways between two nodes that only the relay connects;
    `UnavailableError` when it fails.
    """
    settings = Libp2pSettings(
        listen="127.0.0.1:0",
        relays=(relay,),
        behind_router_for_test=True,
        direct_wait_s=0,
        p2pd_sha256=p2pd_sha256,
    )
    nodes = [Libp2pTransport(Ed25519PrivateKey.generate(), settings) for _ in range(2)]
    try:
        async with asyncio.timeout(PROOF_TIMEOUT_S):
            (address, *_), _ = await asyncio.gather(*(node.start(_echo) for node in nodes))
            if nodes[0].relay_trouble:
                raise UnavailableError(nodes[0].relay_trouble)
            pipe = await nodes[1].dial(address)
            if not pipe.relayed:
                raise UnavailableError(
                    f"expected a pipe through the relay {relay}, got one to {pipe.remote}"
                )
            await asyncio.gather(_send(pipe), _receive(pipe))
    except TimeoutError:
        raise UnavailableError(
            f"the relay {relay} did not carry {PROOF_BYTES} bytes in {PROOF_TIMEOUT_S} s"
        ) from None
    except UnavailableError as error:
        raise UnavailableError(
            f"the relay {relay} does not carry {PROOF_BYTES} bytes: {error}"
        ) from None
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def _echo(pipe: Pipe) -> None:
    with contextlib.suppress(UnavailableError):  # the dialling end sees it too
        while data := await pipe.read():
            await pipe.write(data)


async def _send(pipe: Pipe) -> None:
    for _ in range(PROOF_BYTES // PIPE_BYTES_MAX):
        await pipe.write(bytes(PIPE_BYTES_MAX))


async def _receive(pipe: Pipe) -> None:
    received = 0
    while received < PROOF_BYTES:
        data = await pipe.read()
        received += len(data)
        if not data:
            raise UnavailableError(f"the pipe ended after {received} bytes")
