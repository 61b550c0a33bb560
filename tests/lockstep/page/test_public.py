"""The port of the public page, over real sockets: a few fixed paths for everybody, and bounds."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from coordinator.public_document import Part
from lockstep.page import model as downloads
from lockstep.page.model import Model
from lockstep.page.public import PublicPage
from lockstep.page.site import KEPT_S, Site
from protocol.border.token_bucket import TokenBuckets
from protocol.errors import AddressInUseError

PAGE_BYTES_MAX = 60_000
"""What a visitor's browser loads."""


class Documents:
    """Counts how often each part is made."""

    def __init__(self) -> None:
        self.made: list[Part] = []
        self.now_s = 0.0

    def part(self, part: Part) -> dict[str, Any]:
        self.made.append(part)
        return {"part": part, "loss": float("nan")}

    def page(self, listen: str = "127.0.0.1:0", model: Path = Path("none")) -> PublicPage:
        return PublicPage(self.site(), listen, Model(model))

    def site(self) -> Site:
        return Site(self.part, written_s=lambda: 1_800_000_000.7, clock_s=lambda: self.now_s)


@pytest.fixture
async def served() -> AsyncIterator[tuple[PublicPage, str]]:
    page = Documents().page()
    yield page, f"http://127.0.0.1:{await page.start(64)}"
    await page.stop()


async def ask(url: str, method: str = "GET", **options: Any) -> tuple[int, bytes, Any]:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, url, **options) as reply,
    ):
        return reply.status, await reply.read(), reply.headers


async def test_page_and_documents_are_served_gzipped_and_without_another_host(
    served: tuple[PublicPage, str],
) -> None:
    _, url = served
    status, body, headers = await ask(f"{url}/?me=0123")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    text = gzip.decompress(body).decode()
    assert "://" not in text
    assert "operator.js" not in text, "the operator's part is not for everybody"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    status, body, _ = await ask(f"{url}/run.json")
    document = msgspec.json.decode(gzip.decompress(body))
    assert document == {"part": "run", "loss": None, "written_s": 1_800_000_000}
    _, body, _ = await ask(f"{url}/run.json", headers={"Accept-Encoding": "identity"})
    assert msgspec.json.decode(body) == document


@pytest.mark.parametrize(
    "path",
    ["status.json", "rounds.json", "operator.json", "metrics", "assets/operator.js", "..%2Fx", "x"],
)
async def test_nothing_of_the_operator_is_served(served: tuple[PublicPage, str], path: str) -> None:
    assert (await ask(f"{served[1]}/{path}"))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_but_reading_is_taken(served: tuple[PublicPage, str], method: str) -> None:
    assert (await ask(f"{served[1]}/run.json", method))[0] == 405
    assert (await ask(f"{served[1]}/run.json", "HEAD"))[:2] == (200, b"")


async def test_a_body_and_long_headers_are_refused(served: tuple[PublicPage, str]) -> None:
    assert (await ask(f"{served[1]}/run.json", data=b"x"))[0] == 405
    assert (await ask(f"{served[1]}/run.json", headers={"X": 3000 * "x"}))[0] == 400


def test_a_document_is_made_once_for_all_that_ask_within_its_time() -> None:
    documents = Documents()
    site = documents.site()
    for _ in range(3):
        assert site.answer("run.json") is site.answer("run.json")
    site.answer("curve.json")
    assert documents.made == ["run", "curve"]
    documents.now_s = KEPT_S["run"]
    site.answer("run.json")
    assert documents.made == ["run", "curve", "run"]
    assert site.answer("run") is None


def test_the_page_is_small() -> None:
    files = Site(Documents().part, operators=True).files
    assert sum(len(each.packed) for each in files.values()) < PAGE_BYTES_MAX


async def test_who_asks_too_often_is_refused_and_cut(
    served: tuple[PublicPage, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, url = served
    monkeypatch.setattr(page, "_of_host", TokenBuckets(0.001, 2))
    assert [(await ask(f"{url}/run.json"))[0] for _ in range(3)] == [200, 200, 429]
    _, _, headers = await ask(f"{url}/run.json")
    assert headers["Connection"] == "close"


async def test_a_page_that_stays_open_may_go_on_asking(served: tuple[PublicPage, str]) -> None:
    _, url = served
    headers = {"X-Padding": 1000 * "x"}
    one = aiohttp.TCPConnector(limit=1)
    async with asyncio.timeout(20), aiohttp.ClientSession(connector=one) as session:
        for _ in range(40):  # five times what a connection may send before it was of use
            async with session.get(f"{url}/run.json", headers=headers) as reply:
                assert reply.status == 200


async def test_a_visitor_that_says_nothing_takes_no_place_from_others() -> None:
    page = Documents().page()
    port = await page.start(places=2)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    try:
        assert (await ask(f"http://127.0.0.1:{port}/run.json"))[0] == 200
        assert await silent[0][0].read() == b"", "the oldest made room"
    finally:
        for _, writer in silent:
            writer.close()
        await page.stop()


async def test_a_taken_port_is_named_by_its_option(served: tuple[PublicPage, str]) -> None:
    taken = served[1].removeprefix("http://")
    with pytest.raises(AddressInUseError, match="--public-page"):
        await Documents().page(taken).start(4)


@pytest.fixture
async def with_model(tmp_path: Path) -> AsyncIterator[tuple[Model, str]]:
    folder = tmp_path / "9-5ad1"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(200)))
    (folder / "config.json").write_text("{}")
    (folder / "notes.txt").write_text("SECRET")
    (tmp_path / "8-5ad0").mkdir()
    (tmp_path / "8-5ad0" / "config.json").write_text("{}")
    model = Model(tmp_path)
    page = PublicPage(Documents().site(), "127.0.0.1:0", model)
    assert model.files("9-5ad1") == (("config.json", 2), ("model.safetensors", 200))
    yield model, f"http://127.0.0.1:{await page.start(64)}/model"
    await page.stop()


async def test_the_files_of_the_newest_model_can_be_fetched_and_taken_up(
    with_model: tuple[Model, str],
) -> None:
    _, url = with_model
    status, body, headers = await ask(f"{url}/9-5ad1/model.safetensors")
    assert (status, body) == (200, bytes(range(200)))
    assert headers["X-Content-Type-Options"] == "nosniff"
    rest = {"Range": "bytes=150-"}
    status, body, headers = await ask(f"{url}/9-5ad1/model.safetensors", headers=rest)
    assert (status, body) == (206, bytes(range(150, 200)))
    assert headers["Content-Range"] == "bytes 150-199/200"
    for wrong in ("bytes=200-", "bytes=x"):
        status, body, _ = await ask(f"{url}/9-5ad1/config.json", headers={"Range": wrong})
        assert (status, len(body) < 200) == (416, True)


@pytest.mark.parametrize(
    "path", ["9-5ad1/notes.txt", "8-5ad0/config.json", "9-5ad1/..%2F8-5ad0", "..%2F/journal.sqlite"]
)
async def test_no_other_file_can_be_fetched(with_model: tuple[Model, str], path: str) -> None:
    status, body, _ = await ask(f"{with_model[1]}/{path}")
    assert (status, b"SECRET" in body) == (404, False)


async def test_a_model_that_is_gone_is_listed_no_more(with_model: tuple[Model, str]) -> None:
    model, url = with_model
    assert model.files("7-none") == ()
    assert (await ask(f"{url}/9-5ad1/config.json"))[0] == 404


async def test_one_host_takes_few_downloads_at_once(
    with_model: tuple[Model, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = with_model
    held = asyncio.Event()

    async def waits(_: int) -> None:
        await held.wait()

    monkeypatch.setattr(model, "_pace", waits)
    first = [asyncio.create_task(ask(f"{url}/9-5ad1/config.json")) for _ in range(2)]
    async with asyncio.timeout(20):
        while model.running < downloads.DOWNLOADS_PER_HOST:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
    assert (await ask(f"{url}/9-5ad1/config.json"))[0] == 503
    held.set()
    assert [(await each)[:2] for each in first] == 2 * [(200, b"{}")]
    assert model.running == 0


async def test_all_downloads_together_take_a_bounded_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    model = Model(tmp_path)
    monkeypatch.setattr(downloads.asyncio, "sleep", sleep)
    for _ in range(20):
        await model._pace(downloads.BYTES_PER_S // 10)
    assert waited[:10] == 10 * [0.0], "a second's worth at once"
    assert waited[-1] == pytest.approx(1.0, abs=0.1)
