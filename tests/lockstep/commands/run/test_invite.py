"""`lockstep invite`: one line that joins, with its end, and why there is none."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from coordinator.machine.events import acts
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from lockstep.commands.run.invite import invite, picture
from lockstep.console import messages
from lockstep.service.directory import Owner, claimed
from lockstep.service.order_socket import OrderSocket
from protocol.border.join_link import parse_link
from protocol.errors import SettingsError
from protocol.ids import sha256
from tests.coordinator.client import COORDINATOR_KEY, quiet_spec


@asynccontextmanager
async def operated(
    directory: Path, listen: str = "127.0.0.1:0", *, secure: bool = False
) -> AsyncIterator[CoordinatorProcess]:
    """A coordinator that takes orders; `secure`: as one with TLS says of itself."""
    settings = CoordinatorSettings(directory, listen)
    with claimed(directory, Owner("coordinator", run="tiny")):
        process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
        await process.start()
        if secure:
            process._gate._credentials = object()
        order_socket = OrderSocket(directory, process.desk)
        await order_socket.start()
        try:
            yield process
        finally:
            await order_socket.stop()
            await process.stop()


async def invited(directory: Path, uses: int = 20, expires_in_s: float | None = 604_800) -> None:
    await asyncio.to_thread(invite, directory, uses=uses, expires_in_s=expires_in_s)


async def test_the_whole_line_has_a_token_and_its_end_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with operated(tmp_path, "0.0.0.0:0", secure=True) as process:
        await process.desk.order(acts.Admit("token"))
        await invited(tmp_path)
        said = capsys.readouterr()
        found = re.fullmatch(r"lockstep join '(lockstep://\S+)'\n", said.out)
        assert found
        link = parse_link(found[1])
        assert (link.run_id, link.key) == (process.link.run_id, process.link.key)
        [token] = process.rounds.state.operator.admission.tokens.values()
        assert (token.token.digest, token.token.uses) == (sha256(link.token.encode()), 20)
        assert re.search(
            r"for 20 computers, until 2\d{3}-.* UTC; `lockstep run token rev", said.err
        )


async def test_a_run_for_everybody_needs_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with operated(tmp_path, "0.0.0.0:0") as process:
        await invited(tmp_path)
        said = capsys.readouterr()
        assert "token" not in said.out
        assert "admits everyone" in said.err
        assert not process.rounds.state.operator.admission.tokens
        await process.desk.order(acts.Admit("list"))
        await invited(tmp_path)
        assert "lockstep run allow ID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listen", "words"),
    [("127.0.0.1:0", "only this machine can reach"), ("0.0.0.0:0", "without --plain-text")],
)
async def test_a_line_that_nobody_can_use_is_not_made(
    tmp_path: Path, listen: str, words: str
) -> None:
    async with operated(tmp_path, listen) as process:
        await process.desk.order(acts.Admit("token"))
        with pytest.raises(SettingsError, match=words):
            await invited(tmp_path)
        assert not process.rounds.state.operator.admission.tokens


def test_the_code_of_the_longest_line_fits_a_terminal() -> None:
    line = f"lockstep join 'lockstep://{'h' * 60}:50700/{32 * 'a'}?token={40 * 't'}#{43 * 'k'}'"
    rows = picture(line).splitlines()
    assert len(rows) <= 40
    assert max(map(len, rows)) <= 80
    assert set("".join(rows)) <= set(" ▀▄█")


def test_a_scanner_reads_the_line_from_the_terminal() -> None:
    scanner = pytest.importorskip("cv2", reason="opencv-python-headless, which scans, is missing")
    link = f"lockstep://run.example:50700/{32 * 'a'}?token={40 * 't'}#{43 * 'k'}"
    with messages.capture() as seen:
        messages.print(picture(f"lockstep join '{link}'"))
    rows = seen.get().rstrip("\n").splitlines()
    halves = [[[each in "█▀" for each in row], [each in "█▄" for each in row]] for row in rows]
    pixels = np.array(halves, np.uint8).reshape(2 * len(rows), -1) * 255
    read, *_ = scanner.QRCodeDetector().detectAndDecode(pixels.repeat(6, 0).repeat(6, 1))
    assert read == f"lockstep join '{link}'"
