"""The public page as files: the same as the port serves, and nothing else."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from coordinator.machine.events.effects import Checkpoint
from coordinator.process import CoordinatorProcess
from lockstep.page.export import export
from lockstep.page.routes import Page
from lockstep.page.site import Site
from lockstep.service.admin import AdminServer
from protocol.errors import StorageError, UnavailableError
from protocol.ids import Digest, PeerId
from tests.coordinator.client import joined_pair, quiet_spec, train


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def to_folder(process: CoordinatorProcess, folder: Path) -> int:
    server = AdminServer(process, page=Page(process).routes())
    try:
        return await asyncio.to_thread(export, await server.start(), process.checkpoints, folder)
    finally:
        await server.stop()


async def test_a_web_server_gets_the_page_that_the_port_serves(tmp_path: Path) -> None:
    folder = tmp_path / "www"
    async with joined_pair(tmp_path / "run", quiet_spec()) as (process, one, two):
        await train([one, two], 2)
        await to_folder(process, folder)
        size = await to_folder(process, folder)
    site = Site(lambda _: {})
    documents = {"run.json", "curve.json", "contributors.json"}
    assert written(folder) == site.files.keys() | documents
    assert (folder / "index.html").read_bytes() == site.files["index.html"].body
    assert size == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    assert run["steps"]["committed"] == 2
    assert (folder / "run.json").stat().st_mode & 0o044, "a web server is another account"


async def test_the_newest_model_lies_beside_the_page_and_older_ones_go(tmp_path: Path) -> None:
    folder = tmp_path / "www"
    async with joined_pair(tmp_path / "run", quiet_spec()) as (process, _, _):
        made = process.rounds.state.checkpoints.made
        for number in (8, 9):
            digest = Digest(bytes([number]) * 32)
            made.append(Checkpoint(number, number, 1, digest, 2, PeerId("a" * 32), "", None))
            (process.checkpoints / made[-1].name).mkdir(parents=True)
            (process.checkpoints / made[-1].name / "config.json").write_text("{}")
            await to_folder(process, folder)
    assert written(folder / "model") == {f"{made[-1].name}/config.json"}
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    assert run["model"]["newest"]["files"] == [{"name": "config.json", "bytes": 2}]


async def test_without_a_coordinator_or_a_place_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="expected the page of a coordinator at work"):
        export("http://127.0.0.1:1", tmp_path, tmp_path)
    assert written(tmp_path) == set()
    (tmp_path / "file").touch()
    async with joined_pair(tmp_path / "run", quiet_spec()) as (process, _, _):
        with pytest.raises(StorageError):
            await to_folder(process, tmp_path / "file")
