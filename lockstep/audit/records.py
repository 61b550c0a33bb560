"""Reads the record of a run: from the files of a finished one, or from a live one's coordinator and
members.

    a coordinator's directory    journal.sqlite, key.pem; payloads in payloads/, its own or that of
                                 a directory beside it
    a demo's directory           coordinator/, node-*/payloads, checkpoint/

Payloads are only read, never repaired or pruned. The journal is opened exclusively, as by its
coordinator: a live run is asked at its address instead. Files need no network. Nothing that is read
is trusted: `lockstep.audit.verify` checks it.
"""

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.act_log import read_acts
from coordinator.bound_run import spec_in
from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.machine.events.acts import Demote
from coordinator.service.coordinator_messages import commits_reply
from lockstep.audit.work.published import Accusation, shown_evidence
from lockstep.exit_codes import UsageError
from lockstep.service.journal_copy import readable_journal
from lockstep.service.keys import KEY_NAME, read_key
from node.control.client import CoordinatorClient
from node.gossip.transfer import Transfer
from node.links.mesh import Mesh
from node.links.network import BlobRange, PeerAddress, Purpose, ReadOnlyPeer
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.system.clock import own_clock_ms
from node.system.files import storage_errors
from node.transports.dial_guard import DialGuard
from node.transports.grpc_transport import GrpcTransport
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from protocol.codec.evidence import read_evidence
from protocol.errors import (
    DivergedError,
    RemoteProtocolError,
    SettingsError,
    StorageError,
    UnavailableError,
)
from protocol.handshake import public_bytes
from protocol.ids import Digest, RunId, sha256, short
from protocol.limits import COMMITS_PER_REPLY
from protocol.run_info import RunInfo
from protocol.runfile import run_id

CONNECT_S = 5
"""Longest wait for the first answer of a coordinator."""


class Named(Protocol):
    """The name of some bytes: an entry or the sum of a range, or what a list of these names."""

    @property
    def digest(self) -> Digest:
        """SHA-256 of the bytes."""

    @property
    def title(self) -> str:
        """What they are, in words."""


class RunRecord(Protocol):
    """The record of a run: its commits and payloads."""

    info: RunInfo

    async def commits(self, after_round: int) -> wire.Commits:
        """Reads the commits after a round, oldest first, at most one reply full."""

    async def payload(self, round: int, needed: Named) -> bytes:
        """Reads the bytes of a round that have a name.

        Raises `DivergedError` when only other bytes are found under that name, `StorageError` or
        `UnavailableError` when none are found.
        """

    async def close(self) -> None:
        """Closes files and connections."""


# ---- from files


class RecordInFiles:
    """The record that a coordinator's journal and some nodes' payload logs hold."""

    def __init__(self, directory: Path, payloads: tuple[Path, ...]) -> None:
        place = (
            directory / "coordinator"
            if (directory / "coordinator" / JOURNAL_NAME).is_file()
            else directory
        )
        if not (place / JOURNAL_NAME).is_file():
            raise UsageError(
                f"{directory}: expected the directory of a coordinator or a demo, "
                f"found no {JOURNAL_NAME}"
            )
        self._payloads = payloads or _payload_directories(place)
        with ExitStack() as opened:
            self._path = opened.enter_context(readable_journal(place / JOURNAL_NAME))
            self.info = _info(place, self._path)
            self._journal = Journal(self._path)
            opened.callback(self._journal.close)
            self._opened = opened.pop_all()

    async def commits(self, after_round: int) -> wire.Commits:
        return await asyncio.to_thread(self._commits, after_round)

    def _commits(self, after_round: int) -> wire.Commits:
        rows = self._journal.commits(after_round, COMMITS_PER_REPLY, for_audit=True)
        newest = self._journal.last_commits(1)
        head = newest[0].round if newest else -1
        entries = self._journal.entries(after_round + 1, rows[-1].round if rows else head)
        return commits_reply(rows, head, head, entries)

    async def payload(self, round: int, needed: Named) -> bytes:
        return await asyncio.to_thread(self._read, round, needed)

    async def evidence(self) -> list[Accusation]:
        """The evidence by which authors have lost their standing."""
        log = await asyncio.to_thread(read_acts, self._path)
        acts = [each.act for each in log.acts if isinstance(each.act, Demote)]
        return [Accusation(read_evidence(act.body), act.public_key) for act in acts]

    async def close(self) -> None:
        self._opened.close()

    def _read(self, round: int, needed: Named) -> bytes:
        paths = [directory / str(round) / needed.digest.hex() for directory in self._payloads]
        present = [path for path in paths if path.is_file()]
        for path in present:
            with storage_errors(path):
                blob = path.read_bytes()
            if sha256(blob) == needed.digest:
                return blob
        name = f"{needed.title} for round {round}"
        if present:
            raise DivergedError(
                f"{present[0]}: expected {name} with digest {needed.digest.hex()[:16]}, "
                "got other bytes"
            )
        searched = ", ".join(map(str, self._payloads)) or "no directory of payloads"
        raise StorageError(
            f"expected {name} in {searched}, found none; name the directory that has it with "
            "--payloads"
        )


def _payload_directories(place: Path) -> tuple[Path, ...]:
    return tuple(
        sorted(
            path for path in (place / "payloads", *place.parent.glob("*/payloads")) if path.is_dir()
        )
    )


def _info(place: Path, journal: Path) -> RunInfo:
    """The run of a coordinator's directory, whose journal may be read from a copy; its name must
    be the hash of key and run file.
    """
    with _opened(journal) as database:
        meta = dict(database.execute("SELECT key, value FROM meta").fetchall())
    if "run_id" not in meta or "run_json" not in meta:
        raise StorageError(
            f"{place / JOURNAL_NAME}: expected the journal of a run, found none in it"
        )
    if not (place / KEY_NAME).is_file():
        raise StorageError(f"{place}: expected the coordinator's key in {KEY_NAME}, found none")
    key = public_bytes(read_key(place / KEY_NAME))
    spec = spec_in(meta, place / JOURNAL_NAME)
    if run_id(spec, key) != meta["run_id"]:
        raise SettingsError(
            f"{place}: expected the key and the run file of run {meta['run_id']}, got another's"
        )
    return RunInfo(spec, RunId(meta["run_id"]), key)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as database:
            yield database
    except sqlite3.Error as error:
        raise StorageError(
            f"cannot read {path}: {error}; expected the whole journal of a coordinator: put it "
            "back from a copy, or audit the run at HOST:PORT"
        ) from error


# ---- from a live run


class RecordOverNetwork:
    """The record of a live run, from its coordinator and its members. Open it with `connect`."""

    def __init__(
        self, link: JoinLink, client: CoordinatorClient, info: RunInfo, key: Ed25519PrivateKey
    ) -> None:
        self.info = info
        self._link, self._client = link, client
        identity = Identity(key, info.run_id, secrets.randbits(64))
        vouching, guard = key if client.secure else None, DialGuard(client.address)
        self._links = Mesh(
            identity,
            [GrpcTransport("127.0.0.1:0", key=vouching, guard=guard)],
            Uplink(None, own_clock_ms),
            own_clock_ms,
        )
        self._members: list[PeerAddress] = []

    @classmethod
    async def connect(cls, link: JoinLink) -> "RecordOverNetwork":
        """Asks the coordinator that the link names for its run; `UnavailableError` when it does
        not answer.
        """
        key = Ed25519PrivateKey.generate()
        client = CoordinatorClient(link, key)
        try:
            record = cls(link, client, await client.calls.fetch_run(CONNECT_S), key)
            await record._links.start(ReadOnlyPeer())
            return record
        except BaseException:
            await client.close()
            raise

    async def commits(self, after_round: int) -> wire.Commits:
        return await self._client.calls.fetch_commits(after_round, for_audit=True)

    async def payload(self, round: int, needed: Named) -> bytes:
        # Members and relays are asked in turn, the one that sent the last payload first.
        if not self._members:
            listed = await self._client.calls.fetch_members()
            self._members = [
                PeerAddress(peer, addresses)
                for peer, addresses in (*listed.members.items(), *listed.relays.items())
            ]
        liars = list[str]()
        for member in list(self._members):
            transfer = Transfer(round, self.info.spec.rounds.payload_bytes_max)
            try:
                await self._fetch(member, needed, transfer)
            except UnavailableError:
                self._members.append(self._members.pop(self._members.index(member)))
                continue
            except RemoteProtocolError as error:
                liars.append(f"{short(member.peer_id)}: {error}")
                continue
            if sha256(transfer.buffer) == needed.digest:
                return bytes(transfer.buffer)
            liars.append(f"{short(member.peer_id)} sent other bytes")
        name = f"{needed.title} for round {round}"
        if liars:
            raise DivergedError(
                f"expected {name} with digest {needed.digest.hex()[:16]}: {'; '.join(liars)}"
            )
        raise UnavailableError(
            f"expected {name} from one of {len(self._members)} members and relays, got it from "
            f"none: members keep the last {self.info.spec.retention.log_rounds} rounds, and no "
            "relay that is an archive has this one; begin later with --from SNAPSHOT"
        )

    async def evidence(self) -> list[Accusation]:
        """The evidence by which authors have lost their standing, as far as it is shown."""
        return await asyncio.to_thread(shown_evidence, self._link, self.info.run_id, CONNECT_S)

    async def close(self) -> None:
        await self._links.stop()
        await self._client.close()

    async def _fetch(self, member: PeerAddress, needed: Named, transfer: Transfer) -> None:
        async with aclosing(
            self._links.fetch(member, BlobRange(needed.digest), Purpose.CATCH_UP)
        ) as parts:
            async for part in parts:
                if transfer.append(part, member.peer_id, None):
                    return
        raise UnavailableError(f"{short(member.peer_id)} ended a transfer early")
