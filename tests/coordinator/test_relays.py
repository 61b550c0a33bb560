"""The relays of a run: who is let in, whose session counts, and what members hear of it."""

from pathlib import Path

import pytest

from coordinator.machine.events import Joined
from coordinator.relays import RELAYS_MAX, Relays
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from tests.coordinator.client import ScriptedNode, node_of, quiet_spec, running, until_after


class Heard:
    """A session that notes what it is told."""

    def __init__(self) -> None:
        self.last: list[wire.CoordinatorMessage | None] = []

    def send(self, message: wire.CoordinatorMessage) -> None:
        raise AssertionError(f"expected nothing to be sent, got {message}")

    def close(self, message: wire.CoordinatorMessage | None = None) -> None:
        self.last.append(message)


def relay(number: int) -> Joined:
    return Joined(PeerId(f"{number:032x}"), (f"192.0.2.{number}:50710",), f"relay {number}", "", "")


def test_a_relay_is_in_the_member_list_with_its_addresses_and_marked_as_one() -> None:
    relays: Relays[Heard] = Relays()
    assert relays.admit(relay(2), Heard()) == ""
    assert relays.admit(relay(1), Heard()) == ""
    expected = [
        wire.Member(peer_id=each.peer, addresses=each.addresses, relay=True)
        for each in (relay(1), relay(2))
    ]
    assert relays.told() == expected
    assert relays.document() == [
        {"peer_id": each.peer, "name": each.name, "addresses": list(each.addresses)}
        for each in (relay(1), relay(2))
    ]


def test_a_second_session_of_a_relay_takes_the_place_of_the_first_which_is_told_why() -> None:
    relays: Relays[Heard] = Relays()
    old, new = Heard(), Heard()
    relays.admit(relay(1), old)
    assert relays.admit(relay(1), new) == ""
    (refusal,) = old.last
    assert refusal is not None
    assert "one key is one relay" in refusal.refused.reason
    assert list(relays) == [new]
    assert not relays.part(relay(1).peer, old), "the end of the old session is not the relay's"
    assert relays.part(relay(1).peer, new)
    assert not relays.part(relay(1).peer, new)
    assert relays.told() == []


def test_a_run_has_so_many_relays_and_no_more() -> None:
    relays: Relays[Heard] = Relays()
    for number in range(RELAYS_MAX):
        assert relays.admit(relay(number), Heard()) == ""
    assert relays.admit(relay(RELAYS_MAX), Heard()) == f"the run has {RELAYS_MAX} relays already"
    assert relays.admit(relay(0), Heard()) == "", "one of them may come again"
    assert len(relays.told()) == RELAYS_MAX


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
    monkeypatch.setattr("coordinator.relays.RELAYS_MAX", 1)
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
