"""Messages to the operator: a POST or a command, bounded, tried again, and never in the way."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator.occasions import Occasion
from lockstep.service import notifier as module
from lockstep.service.notifier import TRIES, WAITING_MAX, Notifier
from protocol.errors import SettingsError

FACTS = {"run": "first-run", "run_id": "ab" * 16}
STALL = Occasion("stall", "waiting for members")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0)


class Chat:
    """A web address that gets messages, and answers with `status`."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        self.heard.append(await request.json())
        return web.Response(status=self.status)


@pytest.fixture
async def chat() -> AsyncIterator[tuple[Chat, str]]:
    there, application = Chat(), web.Application()
    application.add_routes([web.post("/hook", there.take)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield there, f"{site.name.rpartition(':')[0]}:{runner.addresses[0][1]}/hook"
    await runner.cleanup()


async def send(target: str, *occasions: Occasion) -> Notifier:
    notifier = Notifier(target, FACTS)
    async with notifier.sending():
        for each in occasions:
            notifier.tell(each)
    return notifier


async def test_a_web_address_gets_the_message_as_chats_want_it(chat: tuple[Chat, str]) -> None:
    there, url = chat
    await send(url, STALL)
    text = "first-run: waiting for members"
    assert there.heard == [{**FACTS, "kind": "stall", "text": text, "content": text}]


async def test_an_address_that_refuses_is_tried_again_and_told_once(
    chat: tuple[Chat, str], caplog: pytest.LogCaptureFixture
) -> None:
    there, url = chat
    there.status = 500
    await send(url, STALL, STALL)
    assert len(there.heard) == 2 * TRIES
    assert [each.message for each in caplog.records] == ["notice not sent"]
    assert caplog.records[0].reason == "it answered 500"  # type: ignore[attr-defined]


async def test_a_command_gets_kind_and_text_as_words(tmp_path: Path) -> None:
    out = tmp_path / "said"
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))"
    await send(shlex.join([sys.executable, "-c", program, str(out)]), STALL)
    assert out.read_text() == "['stall', 'first-run: waiting for members']"


async def test_a_text_is_no_part_of_a_command(tmp_path: Path) -> None:
    odd = Occasion("demotion", f"$(touch {tmp_path}/made); `id` 'x'")
    program = f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(sys.argv[2])"
    await send(shlex.join([sys.executable, "-c", program]), odd)
    assert (tmp_path / "said").read_text() == f"first-run: {odd.text}"
    assert not (tmp_path / "made").exists()


async def test_a_command_that_hangs_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TRY_S", 0.2)
    monkeypatch.setattr(module, "TRIES", 1)
    await send("sh -c 'sleep 1000 & wait'", STALL)
    assert caplog.records[0].reason == "it took longer than 0.2 s"  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/", "false"])
async def test_whatever_fails_is_told_once(target: str, caplog: pytest.LogCaptureFixture) -> None:
    await send(target, STALL)
    [record] = caplog.records
    assert record.message == "notice not sent"


async def test_messages_that_wait_are_bounded() -> None:
    notifier = Notifier("true", FACTS)
    for _ in range(WAITING_MAX + 10):
        notifier.tell(STALL)
    assert notifier._waiting.qsize() == WAITING_MAX


async def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_S", 0.1)
    async with asyncio.timeout(10):
        await send("sleep 1000", STALL)


@pytest.mark.parametrize("target", ["'", "  ", "no-such-program-here --urgent", "/etc/passwd"])
def test_what_is_no_command_is_refused(target: str) -> None:
    with pytest.raises(SettingsError, match="--notify: expected a URL or a command"):
        Notifier(target, FACTS)
