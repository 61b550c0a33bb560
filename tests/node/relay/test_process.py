"""A relay: its self-check, the payloads that it forwards, how it stops, and the words for its
operator.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.process import CoordinatorProcess
from node.links import kept_peers
from node.links.network import PeerAddress
from node.relay import self_check
from node.relay.process import Phase, RelayProcess
from node.relay.settings import RelaySettings
from node.transports.factory import make_transports
from protocol import wire_pb2 as wire
from protocol.codec.announcement import announce, offered_payload
from protocol.codec.payload_header import MAGIC, Header, Sizes, head_bytes
from protocol.errors import SettingsError, UnavailableError
from protocol.ids import PeerId, sha256
from tests.coordinator.client import ScriptedNode, quiet_spec, running
from tests.node.links import net
from tests.node.links.net import RUN, Member, grpc, key_of, peer_of
from tests.support.waiting import PATIENCE_SECONDS, until

KEY = Ed25519PrivateKey.from_private_bytes(b"r" * 32)

PAYLOAD = bytes(range(256)) * 8

WITHOUT_TORCH = """
import sys
for name in ("torch", "numpy", "transformers", "safetensors", "tokenizers", "hivemind"):
    sys.modules[name] = None
import node.relay.process, lockstep.commands.relay
"""


def settings(directory: Path, address: str, **changes: Any) -> RelaySettings:
    return RelaySettings(
        **({"coordinator": address, "directory": directory, "listen": "127.0.0.1:0"} | changes)
    )


@asynccontextmanager
async def relaying(
    tmp_path: Path, coordinator: CoordinatorProcess, **changes: Any
) -> AsyncIterator[RelayProcess]:
    """A relay with its run in the background, known to the coordinator."""
    relay = RelayProcess(settings(tmp_path / "relay", coordinator.address, **changes), KEY, "test")
    running = None
    try:
        await relay.start()
        running = asyncio.create_task(relay.run())
        await until(
            lambda: coordinator.status()["relays"] and relay.status()["session"] == "connected"
        )
        yield relay
    finally:
        if running:
            relay.leave()
            await running
        await relay.stop()


class Neighbour(Member):
    """A node of the run as the relay sees it: a session with the coordinator, and links that it
    dials itself.
    """

    def __init__(self, coordinator: CoordinatorProcess, number: int) -> None:
        super().__init__(key_of(number), [grpc()], None, number)
        self.session = ScriptedNode(coordinator.address, coordinator.run_id, self.key)

    async def __aenter__(self) -> "Neighbour":
        await self.mesh.start(self)
        await self.session.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.stop()
        await self.session.__aexit__()

    def offered(self, coordinator: CoordinatorProcess, blob: bytes) -> wire.Offers:
        digest, run_id = self.hold(blob), coordinator.run_id
        said = announce(self.key, run_id, 0, digest, size=len(blob), samples=1)
        offer = offered_payload(said)
        return wire.Offers(run_id=coordinator.run_id, sender=self.peer, offers=[offer])


@pytest.fixture
async def coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CoordinatorProcess]:
    monkeypatch.setattr(self_check, "TEST_S", PATIENCE_SECONDS)
    async with running(tmp_path / "coordinator", quiet_spec()) as process:
        monkeypatch.setattr(net, "RUN", process.run_id)
        yield process


# ---- summers


@pytest.mark.parametrize(
    ("offers", "sums", "adds"), [(True, 2, True), (False, 2, False), (True, 0, False)]
)
async def test_a_relay_offers_to_add_where_its_owner_wants_it_and_rounds_have_summers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offers: bool, sums: int, adds: bool
) -> None:
    monkeypatch.setattr(self_check, "TEST_S", PATIENCE_SECONDS)
    spec = quiet_spec(algorithm={"name": "local_steps"}, rounds={"sums": sums})
    async with (
        running(tmp_path / "coordinator", spec) as process,
        relaying(tmp_path, process, sums=offers) as relay,
    ):
        assert relay.status()["adds"] is adds
        await until(lambda: [row["adds"] for row in process.status()["relays"]] == [adds])


# ---- the start


async def test_a_relay_fetches_two_megabytes_from_itself_before_anybody_hears_of_it(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    relay = RelayProcess(settings(tmp_path, coordinator.address), KEY, "test")
    assert relay.unready() == "starts"
    try:
        await relay.start()
        assert relay.self_check == f"{relay.addresses[0]}: 2097152 bytes came back whole"
        assert relay.unready() == "tests itself"
        assert coordinator.status()["relays"] == []
    finally:
        await relay.stop()


async def test_an_advertised_address_that_leads_nowhere_is_told_at_the_start(
    tmp_path: Path, coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_peers, "LINK_S", 0.5)
    relay = RelayProcess(
        settings(tmp_path, coordinator.address, advertise=("127.0.0.1:1",)), KEY, "test"
    )
    try:
        with pytest.raises(
            UnavailableError,
            match=r"cannot reach itself from outside: 127\.0\.0\.1:1: no link .*check --advertise",
        ):
            await relay.start()
    finally:
        await relay.stop()


async def test_a_self_test_without_an_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(self_check, "TEST_S", 0)
    monkeypatch.setattr(self_check, "_fetch", never)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1: not done within 0 s; check"):
        await self_check.check_reachable(
            RUN, peer_of(0), ["127.0.0.1:1"], self_check.SelfCheckShelf(), 0
        )


async def test_of_two_addresses_one_that_works_is_enough_and_the_other_is_told(
    tmp_path: Path, coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_peers, "LINK_S", 3)
    both = ("127.0.0.1:1", "127.0.0.1:0")  # port 0 stands for the one that is bound
    relay = RelayProcess(settings(tmp_path, coordinator.address, advertise=both), KEY, "test")
    try:
        await relay.start()
        assert relay.self_check.startswith("127.0.0.1:1: no link to ")
        assert relay.self_check.endswith(f"; {relay.addresses[1]}: 2097152 bytes came back whole")
    finally:
        await relay.stop()


async def test_a_limit_that_makes_the_self_test_slow_does_not_make_it_fail(
    tmp_path: Path, coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "TEST_S", 0)
    monkeypatch.setattr(self_check, "LIMITED_SHARE", 0.1)  # a busy machine takes its time too
    relay = RelayProcess(settings(tmp_path, coordinator.address, peer_limit=2_000_000), KEY, "test")
    try:
        await relay.start()
        assert "came back whole" in relay.self_check
    finally:
        await relay.stop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coordinator": "no port here:x"}, "expected HOST:PORT"),
        ({"listen": "0.0.0.0:70000"}, "expected HOST:PORT"),
        ({"advertise": ("relay.example:port",)}, "expected HOST:PORT"),
        ({"links": "quic"}, "expected transports among grpc, libp2p, got quic"),
        ({"disk": 0}, "disk: expected at least 1, found 0"),
        (
            {"peer_limit": 19_999},
            "peer_limit: expected 0 or at least 20000 bytes per second, found 19999",
        ),
        (
            {"upload_limit": -1},
            "upload_limit: expected 0 or at least 20000 bytes per second, found -1",
        ),
    ],
)
def test_a_setting_out_of_bounds_says_what_was_expected_and_found(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(Path("x"), change.pop("coordinator", "127.0.0.1:1"), **change)


@pytest.mark.parametrize(
    ("upload", "peer", "slowest"), [(0, 0, 0), (50_000, 0, 50_000), (50_000, 30_000, 30_000)]
)
def test_the_slowest_limit_is_what_one_peer_may_take(upload: int, peer: int, slowest: int) -> None:
    assert (
        settings(Path("x"), "127.0.0.1:1", upload_limit=upload, peer_limit=peer).slowest == slowest
    )


@pytest.mark.parametrize("kinds", [("grpc", "libp2p"), ("libp2p", "grpc")])
def test_grpc_takes_the_port_and_libp2p_the_next_so_that_both_can_be_opened_on_a_router(
    kinds: tuple[str, ...],
) -> None:
    made: Any = {
        each.kind: each
        for each in make_transports(kinds, KEY, "127.0.0.1:50710", (), (), relay=True)
    }
    assert (made["grpc"].listen, made["libp2p"].listen) == (
        "127.0.0.1:50710",
        "127.0.0.1:50711",
    )
    (alone,) = make_transports(("libp2p",), KEY, "127.0.0.1:50710", (), (), relay=True)
    assert alone.listen == "127.0.0.1:50710"  # type: ignore[attr-defined]


# ---- at work


async def test_what_one_node_offers_reaches_another_that_cannot_be_dialled(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    header = Header(coordinator.run_id, 0, PeerId("0" * 32))
    payload = head_bytes(header, Sizes(MAGIC, 1, 1, 1), 0) + PAYLOAD
    async with (
        relaying(tmp_path, coordinator) as relay,
        Neighbour(coordinator, 1) as author,
        Neighbour(coordinator, 2) as reader,
    ):
        there = PeerAddress(relay.peer, relay.addresses)
        for neighbour in (author, reader):
            neighbour.mesh.keep([there])
        await until(
            lambda: relay.status()["members"] == 2 and relay.peer in author.linked & reader.linked
        )
        await until(lambda: relay.started.swarm.newest_round == 0)
        await author.mesh.offer(there, author.offered(coordinator, payload))
        await until(lambda: reader.offers)
        (offer,) = reader.offers[0].offers
        assert (offer.round, offer.digest, offer.payload_bytes) == (
            0,
            sha256(payload),
            len(payload),
        )
        assert reader.offers[0].sender == relay.peer
        assert await reader.fetched(there, sha256(payload)) == payload
        assert not author.offers, "the giver is not offered it"
        document = relay.status()
    assert document["payloads"]["bytes"] == len(payload)
    assert {each["peer"] for each in document["links"]["open"]} == {author.peer, reader.peer}
    assert (
        document["traffic"]["payload_up_bytes"]
        == document["traffic"]["payload_down_bytes"]
        == len(payload)
    )


async def test_the_numbers_for_prometheus_are_those_of_the_status(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    async with relaying(tmp_path, coordinator) as relay:
        families = {family.name: family for family in relay.registry.collect()}
        values = {
            name: [sample.value for sample in family.samples] for name, family in families.items()
        }
        traffic = {
            (sample.labels["kind"], sample.labels["direction"]): sample.value
            for sample in families.pop("lockstep_relay_traffic_bytes").samples
        }
        assert values["lockstep_relay_round"] == [-1]
        assert values["lockstep_relay_links"] == values["lockstep_relay_payload_log_bytes"] == [0]
        assert traffic["catch_up", "up"] == self_check.TEST_BYTES
        assert {kind for kind, _ in traffic} == {"payload", "catch_up", "control"}
        assert relay.unready() == ""


# ---- the end


async def test_a_relay_that_is_told_to_stop_ends_its_uploads_at_the_limit_of_each_peer(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    limit, blob = 200_000, bytes(400_000)
    async with (
        relaying(tmp_path, coordinator, peer_limit=2_000_000) as relay,
        Neighbour(coordinator, 1) as reader,
    ):
        parts = relay.started
        assert parts.mesh.peer_limit == 2_000_000
        parts.mesh.peer_limit = limit  # after the self-check: slow enough to be caught in the act
        parts.payloads.put(0, blob)
        began_s = time.monotonic()
        fetching = asyncio.create_task(
            reader.fetched(PeerAddress(relay.peer, relay.addresses), sha256(blob))
        )
        await until(lambda: parts.mesh.traffic.catch_up_up > self_check.TEST_BYTES)
        relay.leave()
        await until(lambda: coordinator.status()["relays"] == [])
        assert not fetching.done()
        assert relay.phase is Phase.DRAINING
        assert relay.unready() == "drains: told every node to do without it"
        assert await fetching == blob
        assert time.monotonic() - began_s > len(blob) / limit - 0.25, (
            "a burst of a quarter of a second is allowed"
        )


async def test_the_end_of_the_run_ends_the_relay_with_its_reason(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    relay = RelayProcess(settings(tmp_path / "relay", coordinator.address), KEY, "test")
    try:
        await relay.start()
        task = asyncio.create_task(relay.run())
        await until(lambda: coordinator.status()["relays"])
        finished = wire.RunFinished(head_round=7, reason="all 8 steps are done")
        coordinator.service.delivery.broadcast(wire.CoordinatorMessage(finished=finished))
        assert await task == "all 8 steps are done"
    finally:
        await relay.stop()


async def test_an_archive_stays_when_the_run_is_finished(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    async with relaying(tmp_path, coordinator, archive=True) as relay:
        finished = wire.RunFinished(head_round=7, reason="all 8 steps are done")
        coordinator.service.delivery.broadcast(wire.CoordinatorMessage(finished=finished))
        opened = wire.RoundSkipped(round=9, reason="so that it is heard after the end")
        coordinator.service.delivery.broadcast(wire.CoordinatorMessage(skipped=opened))
        await until(lambda: relay.status()["round"] == 9)
        assert relay.phase is Phase.RELAYING
        assert relay.status()["archive"]["missing"] == 0


async def test_a_session_that_the_coordinator_ends_leaves_no_sender_behind(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    def senders() -> list[str]:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return [name for name in names if name.endswith("_consume_request_iterator")]

    async with relaying(tmp_path, coordinator) as relay:
        assert len(senders()) == 1
        coordinator.service.delivery.close()
        await until(lambda: relay.status()["session"] != "connected")
        await until(lambda: relay.status()["session"] == "connected")
        assert len(senders()) == 1


# ---- what it does not need


def test_a_relay_imports_neither_torch_nor_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
