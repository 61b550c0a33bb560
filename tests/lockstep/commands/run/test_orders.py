"""The operator's orders over a local socket: what is asked, answered, refused and printed."""

import asyncio
import json
import re
import socket
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.journal import JOURNAL_NAME
from coordinator.machine.events import acts
from coordinator.process import CoordinatorProcess
from lockstep.commands.run import orders
from lockstep.commands.run.audit import audit
from lockstep.service.directory import Owner, claimed
from lockstep.service.order_socket import SOCKET_NAME, Look, OrderSocket, send
from protocol.errors import SettingsError, StorageError, UnavailableError
from tests.coordinator.client import node_of, quiet_spec, running

EVERYWHERE = "192.0.2.7"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    """A coordinator that takes orders in `tmp_path`."""
    with claimed(tmp_path, Owner("coordinator", run="tiny")):
        async with running(tmp_path, quiet_spec()) as process:
            order_socket = OrderSocket(tmp_path, process.desk)
            await order_socket.start()
            yield process
            await order_socket.stop()


async def sent(directory: Path, order: acts.Act | Look) -> dict[str, Any]:
    return await asyncio.to_thread(send, directory, order)


async def printed(capsys: pytest.CaptureFixture[str], *call: Any, **options: Any) -> str:
    await asyncio.to_thread(*call, **options)
    return capsys.readouterr().out


async def test_the_socket_is_its_owners_alone(tmp_path: Path, process: CoordinatorProcess) -> None:
    mode = await asyncio.to_thread((tmp_path / SOCKET_NAME).stat)
    assert stat.S_IMODE(mode.st_mode) == 0o600


async def test_an_order_is_done_when_it_is_answered(
    tmp_path: Path, process: CoordinatorProcess
) -> None:
    answer = await sent(tmp_path, acts.Pause("new disk"))
    assert answer["said"] == "pause the run: new disk"
    operator = process.rounds.state.operator
    assert operator.paused == "new disk"
    assert answer["digest"] == operator.head.hex()
    document = (await sent(tmp_path, Look()))["document"]
    assert document["audit"] == {"acts": 1, "head": operator.head.hex()}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (acts.Resume(), "expected a paused run"),
        (acts.Unban(EVERYWHERE), f"no ban of {EVERYWHERE}"),
        (acts.Pause("x" * 201), r"reason: expected at most 200 characters, found .*\(201 char"),
        (acts.Announce(""), "text: expected a text, not an empty one, found ''"),
        (acts.Evict("not a key"), "peer: expected"),
        (acts.Token("a b", b"d" * 32), "name: expected 1 to 32 letters, digits, .*, found 'a b'"),
        (acts.Token("t", b"d" * 32, 0), "uses: expected at least 1, found 0"),
        (acts.Extend(10**9), "steps: expected at most 100000000, found 1000000000"),
        (acts.Evict("ab" * 16, "", 10**9), "seconds of --for: expected at most 2592000, found 1"),
        (acts.Rate(float("nan")), "learning_rate: expected more than 0.0, found nan"),
    ],
)
async def test_a_wrong_order_is_one_sentence_and_changes_nothing(
    tmp_path: Path, process: CoordinatorProcess, act: acts.Act, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        await sent(tmp_path, act)
    assert process.rounds.state.operator.acts == 0


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"no json", b'{"type":"dance"}', b'{"type":"pause","reason":7}', b"[" * 100_000],
)
async def test_a_line_that_is_no_order_is_answered_with_the_reason(
    tmp_path: Path, process: CoordinatorProcess, line: bytes
) -> None:
    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(tmp_path / SOCKET_NAME))
            raw.sendall(line + b"\n")
            return raw.makefile("rb").readline()

    assert json.loads(await asyncio.to_thread(ask))["error"].startswith("expected an order")
    assert (await sent(tmp_path, Look()))["document"]["bans"] == []


@pytest.mark.parametrize(
    ("seconds", "end"), [(604_800.0, r"until 2\d{3}-\d\d-\d\d .* UTC"), (None, "without an end")]
)
async def test_a_new_token_comes_with_its_end_and_the_line_that_joins_by_it(
    tmp_path: Path,
    process: CoordinatorProcess,
    capsys: pytest.CaptureFixture[str],
    seconds: float | None,
    end: str,
) -> None:
    made = {"uses": 20, "expires_in_s": seconds, "vouches": False}
    await asyncio.to_thread(orders.create_token, tmp_path, "friends", **made)
    said = capsys.readouterr()
    secret, (*_, first, line) = said.out.strip(), said.err.strip().splitlines()
    assert re.search(f"for 20 keys, {end}$", first)
    assert f"join '{process.link.with_token(secret).text()}'" in line


@pytest.mark.parametrize(
    ("yes", "terminal", "said", "done"),
    [
        (False, True, "", False),
        (False, True, "n", False),
        (False, True, "Y", True),
        (True, True, "never asked", True),
        (False, False, "never asked", True),
    ],
)
async def test_an_order_that_hits_others_is_asked_about_on_a_terminal(
    tmp_path: Path, process: CoordinatorProcess, yes: bool, terminal: bool, said: str, done: bool
) -> None:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return said

    how = {"yes": yes, "terminal": terminal, "answer": answer}
    await asyncio.to_thread(orders.tell_if_sure, tmp_path, acts.Finish("enough"), **how)
    assert (process.rounds.state.operator.finishing is not None) is done
    assert asked == (["finish the run: enough? [y/N] "] if terminal and not yes else [])


def test_a_token_of_a_far_end_is_listed_too() -> None:
    assert orders.moment(2**40 - 1) == "9999-12-31 23:59:59 UTC"


def test_without_a_coordinator_the_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=f"no coordinator answers in {tmp_path}.*: name the"):
        send(tmp_path, Look())


async def test_a_token_is_printed_once_and_admits_a_node(
    tmp_path: Path, process: CoordinatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    await sent(tmp_path, acts.Admit("token"))
    secret = await printed(
        capsys, orders.create_token, tmp_path, "t", uses=1, expires_in_s=60, vouches=False
    )
    async with node_of(process, 1) as one:
        hello = one.hello(await one.connect(), token=secret.strip())
        await one.say(hello)
        assert (await one.hear("welcome", "refused")).WhichOneof("kind") == "welcome"
    listed = await printed(capsys, orders.tokens, tmp_path, None)
    assert "1 of 1 keys" in listed
    assert secret.strip() not in listed
    everything = json.dumps((await sent(tmp_path, Look()))["document"])
    assert secret.strip() not in everything


async def test_an_auditor_is_named_listed_and_taken_off(
    tmp_path: Path, process: CoordinatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "ab" * 16
    assert "no auditor is named" in await printed(capsys, orders.auditors, tmp_path)
    await printed(
        capsys, orders.tell, tmp_path, acts.Appoint(orders.auditor_key(f" {key.upper()} "))
    )
    assert (await printed(capsys, orders.auditors, tmp_path)).strip() == key
    assert process.rounds.state.verdicts.auditors == {key}
    await printed(capsys, orders.tell, tmp_path, acts.Dismiss(key))
    assert not process.rounds.state.verdicts.auditors
    with pytest.raises(SettingsError, match="found none with the key"):
        await sent(tmp_path, acts.Dismiss(key))
    with pytest.raises(SettingsError, match="`lockstep auditor` prints it"):
        orders.auditor_key("ab12")


async def test_members_are_printed_with_their_hosts_and_the_bans(
    tmp_path: Path, process: CoordinatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    await sent(tmp_path, acts.Ban(EVERYWHERE, "noise"))
    async with node_of(process, 1) as one:
        await one.join()
        shown = await printed(capsys, orders.members, tmp_path, None)
        assert one.peer[:8] in shown
        assert "127.0.0.1" in shown
        assert f"banned: {EVERYWHERE} noise" in shown
        document = json.loads(await printed(capsys, orders.members, tmp_path, "-"))
        assert [row["peer_id"] for row in document["members"]] == [one.peer]


async def test_a_ban_is_lifted_by_the_beginning_of_its_key_and_bans_are_named_where_there_is_none(
    tmp_path: Path, process: CoordinatorProcess
) -> None:
    key = "ab" * 16
    with pytest.raises(SettingsError, match="found 'eve'; banned: none"):
        await asyncio.to_thread(orders.banned, tmp_path, "eve")
    await sent(tmp_path, acts.Ban(key, "noise"))
    assert await asyncio.to_thread(orders.banned, tmp_path, "abab") == key
    with pytest.raises(SettingsError, match=rf"newest of 1 ban: {key} \(noise\)"):
        await asyncio.to_thread(orders.banned, tmp_path, "eve")


async def test_the_audit_prints_the_acts_and_finds_a_kept_digest(
    tmp_path: Path, process: CoordinatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (await sent(tmp_path, acts.Pause("new disk")))["digest"]
    await sent(tmp_path, acts.Resume())
    shown = await printed(capsys, audit, tmp_path, kept[:12], None)
    assert "pause the run: new disk" in shown
    assert f"sound: 2 acts; the newest digest: {process.rounds.state.operator.head.hex()}" in shown
    with pytest.raises(StorageError, match="cut off or written anew"):
        await asyncio.to_thread(audit, tmp_path, "f" * 12, None)
    with pytest.raises(SettingsError, match="--kept"):
        await asyncio.to_thread(audit, tmp_path, "f", None)


async def test_acts_that_are_cut_off_are_found_by_the_coordinator_at_work(
    tmp_path: Path, process: CoordinatorProcess
) -> None:

    await sent(tmp_path, acts.Pause())
    await sent(tmp_path, acts.Resume())

    def cut() -> None:
        with closing(sqlite3.connect(tmp_path / JOURNAL_NAME)) as file, file:
            file.execute("DELETE FROM events WHERE sequence = (SELECT max(sequence) FROM events)")

    await asyncio.to_thread(cut)
    with pytest.raises(StorageError, match="the coordinator at work knows 2 acts"):
        await asyncio.to_thread(audit, tmp_path, "", None)
