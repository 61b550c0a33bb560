"""The relays of a run: how many are admitted, and what members hear of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.machine.events.effects import Admit, Refuse
from coordinator.machine.events.inputs import Joined
from coordinator.machine.state.sums.relays import AddingRelays
from coordinator.service.relays import RELAYS_MAX, Relays
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from tests.coordinator.client import ScriptedNode, node_of, quiet_spec, running, until_after

LEASE_MS = 3000


def relay(number: int) -> Joined:
    return Joined(PeerId(f"{number:032x}"), (f"192.0.2.{number}:50710",), f"relay {number}", "", "")


def test_admitted_relays_are_listed_by_id_with_their_addresses() -> None:
    relays = Relays(LEASE_MS)
    for number in (2, 1):
        assert relays.join(relay(number), 0) == Admit(relay(number).peer)
    assert list(relays) == [relay(1), relay(2)]
    adding = AddingRelays()
    adding.put(relay(2).peer, "relay 2", 1, LEASE_MS)
    adding.known[relay(2).peer].work.book_sums(3, missed=True)
    idle = {"adds": False, "ranges_added": 0, "halved": 0}
    at_work = {"adds": True, "ranges_added": 3, "halved": 2}
    assert relays.document(adding) == [
        {"peer_id": each.peer, "name": each.name, "addresses": list(each.addresses), **work}
        for each, work in ((relay(1), idle), (relay(2), at_work))
    ]


def test_a_relay_that_comes_again_is_listed_once_with_its_new_addresses() -> None:
    relays = Relays(LEASE_MS)
    relays.join(relay(1), 0)
    moved = replace(relay(1), addresses=("198.51.100.1:1",))
    assert relays.join(moved, 0) == Admit(moved.peer)
    assert list(relays) == [moved]


def test_a_relay_that_leaves_makes_room_for_another() -> None:
    relays = Relays(LEASE_MS)
    for number in range(RELAYS_MAX):
        assert isinstance(relays.join(relay(number), 0), Admit)
    surplus = relay(RELAYS_MAX)
    refusal = Refuse(surplus.peer, f"the run has {RELAYS_MAX} relays already", retry=True)
    assert relays.join(surplus, 0) == refusal
    assert isinstance(relays.join(relay(0), 0), Admit), "a known relay may come again"
    relays.leave(surplus.peer)
    assert relays.join(surplus, 0) == refusal, "it was never admitted"
    relays.leave(relay(0).peer)
    assert relays.join(surplus, 0) == Admit(surplus.peer)


def test_relays_of_strangers_that_beat_keep_no_place_from_one_that_the_operator_has_named() -> None:
    named = {relay(99).peer}
    relays = Relays(LEASE_MS, lambda: named)
    for number in range(RELAYS_MAX):
        relays.join(relay(number), 0)
    assert isinstance(relays.join(relay(RELAYS_MAX), 0), Refuse)
    assert relays.join(relay(99), 0) == Admit(relay(99).peer)
    assert len(list(relays)) == RELAYS_MAX + 1


def test_a_relay_keeps_its_place_by_heartbeats_alone() -> None:
    relays = Relays(LEASE_MS)
    for number in range(RELAYS_MAX):
        relays.join(relay(number), 0)
    assert relays.lapsed(LEASE_MS - 1) == []
    relays.beat(relay(3).peer, LEASE_MS - 1)
    silent = [relay(number).peer for number in range(RELAYS_MAX) if number != 3]
    assert relays.lapsed(LEASE_MS) == silent
    for peer in silent:
        relays.leave(peer)
    assert isinstance(relays.join(relay(RELAYS_MAX), LEASE_MS), Admit)
    assert relays.lapsed(2 * LEASE_MS - 1) == [relay(3).peer]


def hello(node: ScriptedNode, nonce: bytes) -> wire.NodeMessage:
    return node.hello(nonce, relay=True)


async def test_members_hear_of_a_relay_that_comes_and_goes_and_the_machine_never_does(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 2) as other,
    ):
        await node.join()
        await other.say(hello(other, await other.connect()))
        welcome = (await other.hear("welcome")).welcome
        assert {(member.peer_id, member.relay) for member in welcome.members.members} == {
            (node.peer, False),
            (other.peer, True),
        }
        assert (await other.ping()).sent_ms == 1
        await until_after(
            lambda: any(_names(message, other.peer) for message in node.heard), node.ping
        )
        assert [row["peer_id"] for row in process.status()["members"]] == [node.peer]
        assert [row["peer_id"] for row in process.status()["relays"]] == [other.peer]
        await other.say(wire.NodeMessage(leave=wire.Leave(reason="done")))
        await other.hear_end()
        await until_after(
            lambda: any(other.peer in message.members.gone for message in node.heard), node.ping
        )
        assert process.status()["relays"] == []


async def test_a_relay_hears_rounds_without_a_share(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as third,
    ):
        await third.say(hello(third, await third.connect()))
        await third.hear("welcome")
        await one.join()
        await two.join()
        opened = (await third.hear("opened")).opened
        assert (opened.round, list(opened.shares), opened.bell_ms) == (0, [], 0)


async def test_a_relay_too_many_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.service.relays.RELAYS_MAX", 1)
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        await one.say(hello(one, await one.connect()))
        await one.hear("welcome")
        await two.say(hello(two, await two.connect()))
        assert (await two.hear("refused")).refused.reason == "the run has 1 relays already"


def _names(message: wire.CoordinatorMessage, peer: str) -> bool:
    return any(member.peer_id == peer and member.relay for member in message.members.members)
