"""A node that is asked for a checkpoint: which state it takes, what it says, how the files go."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import fsspec
import pytest
import torch

from node.replica.digest import canonical_sha256, state_digest
from node.round.state_requests import publisher as module
from node.round.state_requests.publisher import Outlet, PartSize, Publisher
from protocol import wire_pb2 as wire
from protocol.errors import StorageError, UnavailableError
from protocol.ids import RunId
from protocol.limits import PART_BYTES
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec
from tests.support.waiting import until

INFO = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)
PARAMETERS = {"a": torch.arange(3.0)}


async def no_loss(round: int, patience_s: float) -> None:
    """This node measures none."""


class Stage:
    """A publisher whose coordinator takes every part, unless a test says otherwise."""

    def __init__(self, directory: Path, url: str = "") -> None:
        self.said: list[wire.CheckpointSaid] = []
        self.parts: list[wire.CheckpointPart] = []
        self.refused, self.fails = "", 0
        self.written: list[Mapping[str, object]] = []
        self.outlet = Outlet(directory / "published", self.send, self.put, url)
        self.publisher = Publisher(INFO, self.outlet, lambda: PARAMETERS, self.write, no_loss)

    def send(self, message: wire.NodeMessage) -> None:
        self.said.append(message.checkpoint)

    async def put(self, part: wire.CheckpointPart) -> wire.CheckpointReply:
        if self.fails:
            self.fails -= 1
            raise UnavailableError("away")
        self.parts.append(part)
        return wire.CheckpointReply(refused=self.refused)

    def write(self, directory: Path, about: Mapping[str, object]) -> None:
        self.written.append(about)
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(about))
        (directory / "model.safetensors").write_bytes(bytes(600_000))

    async def asked(self, round: int, **roles: bool) -> None:
        self.publisher.asked(
            wire.CheckpointAsked(
                round=round, step=round, ticket=b"t", room_bytes=10**6, samples=4, **roles
            )
        )
        await self.publisher.show_state(round)
        await self.publisher.finish()


async def test_the_writer_says_its_state_and_sends_every_file_in_parts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.asked(7, write=True)
    (said,) = stage.said
    digest, sha256 = state_digest(PARAMETERS), canonical_sha256(PARAMETERS)
    assert (said.round, said.state_digest, said.sha256) == (7, digest, sha256)
    files: dict[str, bytes] = {}
    for part in stage.parts:
        assert part.ticket == b"t"
        assert part.offset == len(files.get(part.file, b""))
        files[part.file] = files.get(part.file, b"") + part.data
    assert list(files) == ["README.md", "config.json", "model.safetensors", ""]
    assert said.file_bytes == sum(map(len, files.values()))
    assert stage.parts[-1].file == "", "the last word: all files are sent"
    assert f"{digest:016x}" in files["README.md"].decode()
    assert stage.written[0]["round"] == 7
    assert not stage.outlet.directory.exists()


async def test_a_second_member_says_its_state_and_writes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.asked(7, second=True)
    assert [said.sha256 for said in stage.said] == [canonical_sha256(PARAMETERS)]
    assert (stage.said[0].file_bytes, stage.parts, stage.written) == (0, [], [])


async def test_a_node_that_is_not_drawn_and_has_no_address_does_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.asked(7)
    assert (stage.said, stage.parts, stage.written) == ([], [], [])


async def test_the_state_of_an_earlier_round_is_waited_with_and_one_past_it_declined(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.publisher.asked(wire.CheckpointAsked(round=7, second=True))
    await stage.publisher.show_state(6)
    assert not stage.said
    await stage.publisher.show_state(8)
    assert stage.said[0].failure == "its state holds round 8 already"
    await stage.publisher.show_state(8)
    assert len(stage.said) == 1


async def test_an_address_of_the_volunteers_gets_the_files_and_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[tuple[bool, str]] = []
    monkeypatch.setattr(
        module,
        "publish_directory",
        lambda directory, url: put.append(((directory / "README.md").is_file(), url)),
    )
    stage = Stage(tmp_path, "gs://mine")
    await stage.asked(7)
    (said,) = stage.said
    assert (said.url, said.state_digest) == ("gs://mine", state_digest(PARAMETERS))
    assert put == [(True, "gs://mine")]
    assert not stage.parts


async def test_an_address_that_not_everybody_reaches_gets_the_files_and_nobody_is_told(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "memory://mine")
    await stage.asked(7)
    assert not stage.said
    assert fsspec.filesystem("memory").exists("/mine/README.md")


async def test_a_directory_of_the_volunteers_gets_the_files_and_nobody_is_told(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, str(tmp_path / "mine"))
    await stage.asked(7)
    assert (tmp_path / "mine" / "model.safetensors").exists()
    assert not stage.said


async def test_a_part_is_sent_again_while_the_coordinator_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    stage = Stage(tmp_path)
    stage.fails = module.TRIES - 1
    await stage.asked(7, write=True)
    assert stage.parts[-1].file == ""
    stage.fails = module.TRIES
    await stage.asked(8, write=True)
    assert stage.said[-1].failure == "away"


async def test_a_refusal_ends_the_upload(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.refused = "another was drawn"
    await stage.asked(7, write=True)
    assert len(stage.parts) == 1
    assert "another was drawn" in stage.said[-1].failure


async def test_a_disk_that_fails_is_said_and_the_node_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    stage.publisher = Publisher(INFO, stage.outlet, lambda: PARAMETERS, full, no_loss)
    await stage.asked(7, write=True)
    assert [said.failure for said in stage.said] == ["the disk is full"]


async def test_a_writer_that_is_drawn_again_gives_the_older_checkpoint_up(tmp_path: Path) -> None:
    stage, taken = Stage(tmp_path), asyncio.Event()

    async def never(part: wire.CheckpointPart) -> wire.CheckpointReply:
        taken.set()
        await asyncio.Event().wait()
        return wire.CheckpointReply()

    outlet = Outlet(tmp_path / "published", stage.send, never)
    stage.publisher = Publisher(INFO, outlet, lambda: PARAMETERS, stage.write, no_loss)
    for round in (7, 8):
        taken.clear()
        stage.publisher.asked(wire.CheckpointAsked(round=round, write=True, room_bytes=10**6))
        await stage.publisher.show_state(round)
        await until(taken.is_set)
    await stage.publisher.stop()
    assert [(said.round, said.failure) for said in stage.said] == [(7, ""), (8, "")]


async def test_a_node_that_leaves_gives_the_upload_up(tmp_path: Path) -> None:
    stage, taken = Stage(tmp_path), asyncio.Event()

    async def never(part: wire.CheckpointPart) -> wire.CheckpointReply:
        taken.set()
        await asyncio.Event().wait()
        return wire.CheckpointReply()

    stage.publisher = Publisher(
        INFO,
        Outlet(tmp_path / "published", stage.send, never),
        lambda: PARAMETERS,
        stage.write,
        no_loss,
    )
    stage.publisher.asked(wire.CheckpointAsked(round=7, write=True, room_bytes=10**6))
    await stage.publisher.show_state(7)
    await until(taken.is_set)
    stage.publisher.leave()
    await stage.publisher.finish()
    stage.publisher.asked(wire.CheckpointAsked(round=8, write=True, room_bytes=10**6))
    await stage.publisher.show_state(8)
    assert len(stage.said) == 1


def sent_over(mbit: float, rtt_s: float, sizes: list[int]) -> list[float]:
    """Times of the parts of files of these sizes on a line, in seconds without the round trip."""
    part_size, held_s = PartSize(), []
    for size in sizes:
        left = size
        while left:
            count = min(left, part_size.bytes)
            held_s.append(count * 8 / mbit / 1e6)
            part_size.took(count, rtt_s + held_s[-1])
            left -= count
    return held_s


def test_parts_hold_up_the_session_on_a_thin_line_for_a_second_or_two() -> None:
    files = [400, 900, 300, 300, 2_000_000]
    assert max(sent_over(0.06, 0.1, files)) <= 1.2
    assert max(sent_over(0.4, 0.1, files)) <= 0.7


def test_parts_on_a_fat_line_are_large_however_far_it_goes() -> None:
    held_s = sent_over(100, 0.3, [400, 20_000_000])
    assert max(held_s) == PART_BYTES * 8 / 100e6
    assert len(held_s) <= 20_000_000 // PART_BYTES + 9
