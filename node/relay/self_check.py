"""Checks that a relay can be reached from outside and carries more than a little.

A throwaway key dials each announced address and fetches a blob of two megabytes, checked by its
digest. The result is in words: a firewall or a wrong address to advertise shows at the start, not
when volunteers complain.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import aclosing

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.mesh import Mesh
from node.links.network import BlobRange, PeerAddress, Purpose, ReadOnlyPeer
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.system.clock import own_clock_ms
from node.transports.factory import make_transports
from protocol.errors import LockstepError, UnavailableError
from protocol.ids import Digest, PeerId, RunId, sha256

TEST_BYTES = 2 * 1024 * 1024
"""Bytes of the blob: more than any limit that a relay might have by accident; libp2p's default cuts
connections at 128 KB."""

TEST_S = 30
"""Longest time for one address, besides the time that the relay's own limits take."""

LIMITED_SHARE = 2 / 3
"""Least share of its limit that a relay uses: it counts the bytes that packets add, and rests
between bursts."""


class SelfCheckShelf:
    """The blob that a relay fetches from itself; a `node.gossip.blob_server.Shelf`."""

    def __init__(self) -> None:
        self._blob = b""
        self.digest = Digest(b"")

    def fill(self) -> Digest:
        """Make a new blob; returns its digest."""
        self._blob = secrets.token_bytes(TEST_BYTES)
        self.digest = sha256(self._blob)
        return self.digest

    def clear(self) -> None:
        """Free the memory of the blob."""
        self._blob, self.digest = b"", Digest(b"")

    def size(self, digest: Digest) -> int | None:
        return len(self._blob) if digest == self.digest else None

    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        return self._blob[offset : offset + count] if digest == self.digest else None


async def check_reachable(
    run_id: RunId,
    own: PeerId,
    addresses: Sequence[str],
    shelf: SelfCheckShelf,
    limit: int,
    *,
    secure: bool = False,
    p2pd_sha256: str = "",
) -> str:
    """The result in words, one address after the other. `limit`: bytes per second that a peer may
    take, or 0. `secure`: whether the run's links have TLS. `p2pd_sha256`: see `make_transports`.

    Raises `UnavailableError` when no address works, because such a relay helps nobody.
    """
    shelf.fill()
    longest_s = TEST_S + (TEST_BYTES / (LIMITED_SHARE * limit) if limit else 0)
    found, works = list[str](), False
    try:
        for address in addresses:
            try:
                async with asyncio.timeout(longest_s):
                    relay = PeerAddress(own, (address,))
                    await _fetch(run_id, relay, shelf.digest, secure, p2pd_sha256)
            except (LockstepError, TimeoutError) as error:
                found.append(f"{address}: {str(error) or f'not done within {longest_s:.0f} s'}")
            else:
                found.append(f"{address}: {TEST_BYTES} bytes came back whole")
                works = True
    finally:
        shelf.clear()
    if not works:
        raise UnavailableError(
            f"the relay cannot reach itself from outside: {'; '.join(found)}; check --advertise"
        )
    return "; ".join(found)


async def _fetch(
    run_id: RunId, relay: PeerAddress, digest: Digest, secure: bool, p2pd_sha256: str
) -> None:
    key = Ed25519PrivateKey.generate()
    kind = "libp2p" if relay.addresses[0].startswith("/") else "grpc"
    transports = make_transports(
        [kind], key, "0.0.0.0:0", (), (), secure=secure, p2pd_sha256=p2pd_sha256
    )
    mesh = Mesh(
        Identity(key, run_id, secrets.randbits(64)),
        transports,
        Uplink(None, own_clock_ms),
        own_clock_ms,
    )
    try:
        await mesh.start(ReadOnlyPeer())
        blob = bytearray()
        async with aclosing(mesh.fetch(relay, BlobRange(digest), Purpose.CATCH_UP)) as parts:
            async for part in parts:
                blob += part.data
        if sha256(blob) != digest:
            raise UnavailableError("expected the blob back, got other bytes")
    finally:
        await mesh.stop()
