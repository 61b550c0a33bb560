"""The payloads of a commit are decoded, and laid in one piece, alike by any number of threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from node.exact import contributions
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution, decoded
from node.exact.demo import votes
from node.exact.demo.votes import Votes
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId
from tests.node.exact import reference

LAYOUT = ChunkLayout.from_shapes({"odd": (1009, 67), "small": (97,)})
SHAPE = PayloadShape(LAYOUT.chunks, 30, 4)
by_threads = pytest.mark.parametrize("threads", [1, 2, 3])


@pytest.fixture(autouse=True)
def _every_size_is_spread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(contributions, "DECODE_SPREAD_MIN", 0)
    monkeypatch.setattr(votes, "COPY_SPREAD_MIN", 0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def payloads(authors: int, empty: float) -> list[bytes]:
    rng = np.random.default_rng(authors)
    return [
        encode(
            Header(RunId("ab" * 16), 7, PeerId(f"{author:032x}")),
            reference.random_coefficients(rng, SHAPE.chunks, top_k=30, value_max=8, empty=empty),
            SHAPE,
        )
        for author in range(authors)
    ]


def arrays(sent: Coefficients) -> list[bytes]:
    return [getattr(sent, name).tobytes() for name in ("counts", "indices", "values")]


@by_threads
@pytest.mark.parametrize("authors", [0, 1, 2, 5])
@pytest.mark.parametrize("empty", [0.0, 0.4, 1.0])
def test_threads_decode_what_one_does(authors: int, empty: float, threads: int) -> None:
    torch.set_num_threads(threads)
    given = payloads(authors, empty)
    found = decoded(given, SHAPE)
    assert len(found) == authors
    for payload, outcome in zip(given, found, strict=True):
        header, coefficients = decode(payload, SHAPE)
        assert not isinstance(outcome, RemoteProtocolError)
        assert outcome[0] == header
        assert arrays(outcome[1]) == arrays(coefficients)


@by_threads
def test_a_payload_that_does_not_decode_stops_no_other(threads: int) -> None:
    torch.set_num_threads(threads)
    first, second, third = payloads(3, 0.2)
    cut, flipped = second[:-1], third[:-60] + bytes([third[-60] ^ 0xFF]) + third[-59:]
    found = decoded([b"", first, cut, flipped, b"LSP1"], SHAPE)
    refused = [isinstance(outcome, RemoteProtocolError) for outcome in found]
    assert refused[:3] + refused[4:] == [True, False, True, True]
    try:
        expected = arrays(decode(flipped, SHAPE)[1])
    except RemoteProtocolError:
        assert refused[3]
    else:
        assert not isinstance(found[3], RemoteProtocolError)
        assert arrays(found[3][1]) == expected


@by_threads
@pytest.mark.parametrize("authors", [0, 1, 3])
def test_threads_lay_votes_end_to_end(authors: int, threads: int) -> None:
    torch.set_num_threads(threads)
    sent = [decode(payload, SHAPE)[1] for payload in payloads(authors, 0.3)]
    found = Votes(LAYOUT, [Contribution(2, each) for each in sent]).stacked()
    for name in ("indices", "values"):
        parts = [getattr(each, name).tobytes() for each in sent]
        assert getattr(found, name).tobytes() == b"".join(parts)


@by_threads
def test_a_commit_too_small_to_spread_keeps_to_one_thread(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.set_num_threads(threads)
    asked: list[int] = []
    monkeypatch.setattr(contributions, "spread", lambda work, items, threads: asked.append(threads))
    for least, expected in ((3 * SHAPE.chunks * SHAPE.top_k, threads), (10**9, 1)):
        monkeypatch.setattr(contributions, "DECODE_SPREAD_MIN", least)
        asked.clear()
        with pytest.raises(KeyError):  # nothing was read
            decoded(payloads(3, 0.0), SHAPE)
        assert set(asked) == {expected}
