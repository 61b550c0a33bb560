"""A node that does everything right but its work: `python -m tests.processes.dishonest_node KIND
OPTIONS` is `lockstep join OPTIONS`.

    noise    sends places and signs by chance
    copies   sends what another author sent in the commit that it applied last, if it has any; where
             summers add, in the last round in which it was asked to add: it fetches all parts
    sums     trains as it should, and signs a wrong sum as a summer: all of this kind the same
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep.cli import main
from node.exact.device_packing import coefficients_of
from node.exact.engine import Extraction
from node.replica.replica import Replica
from node.sums import summer
from protocol.codec.commits import Commit
from protocol.codec.payload import Body, Coefficients, Header, PayloadShape, body_of, decode
from protocol.codec.sums import decode_sums, encode_sums
from protocol.errors import UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import peer_id
from protocol.limits import CHUNK_ENTRIES
from protocol.sums.adding import Result, answer_to
from protocol.sums.asked import Question
from protocol.sums.parts import heard
from protocol.sums.ranges import ranges_of

_random = torch.Generator().manual_seed(7)


def _noise(extraction: Extraction, shape: PayloadShape) -> Body:
    chunks, top_k = extraction.indices.shape
    order = torch.rand(chunks, CHUNK_ENTRIES, generator=_random).argsort(1)
    indices = order[:, :top_k].sort(1).values.to(torch.int16)
    signs = 2 * torch.randint(0, 2, (chunks, top_k), generator=_random, dtype=torch.int16) - 1
    values = signs * extraction.values.cpu().abs()  # sizes as they were
    if extraction.scales is None:
        return extraction.backend.pack(indices, values, shape)
    scales = extraction.scales.numpy()
    return body_of(replace(coefficients_of(indices, values), scales=scales), shape)


def make_noise() -> None:
    """From now on this process sends noise."""
    Extraction.body = _noise  # type: ignore[method-assign]


def make_copies() -> None:
    """From now on this process sends copies."""
    apply, encoded, body = Replica.apply, Replica.encoded, Extraction.body
    answer = summer.Summer._answer
    own, seen, taken = set[bytes](), list[Coefficients](), set[int]()

    def applied(replica: Replica, commit: Commit, payloads: Sequence[bytes]) -> int:
        for payload in payloads if commit.sums is None else ():
            if payload and payload not in own:
                seen[:] = [decode(payload, replica.shape)[1]]
        return apply(replica, commit, payloads)

    async def answered(adder: summer.Summer, question: Question) -> None:
        if question.round not in taken:
            taken.add(question.round)
            with contextlib.suppress(UnavailableError):  # the round is decided
                seen[:] = [await whole_payload(adder, question)]
        await answer(adder, question)

    def sent(replica: Replica, header: Header, extraction: Extraction) -> tuple[bytes, int]:
        payload, count = encoded(replica, header, extraction)
        own.add(payload)
        return payload, count

    def copied(extraction: Extraction, shape: PayloadShape) -> Body:
        return body_of(seen[0], shape) if seen else body(extraction, shape)

    Replica.apply, Replica.encoded = applied, sent  # type: ignore[method-assign]
    Extraction.body = copied  # type: ignore[method-assign]
    summer.Summer._answer = answered  # type: ignore[method-assign]


async def whole_payload(adder: summer.Summer, question: Question) -> Coefficients:
    """What another author of a round says in all ranges, as any peer can fetch it."""
    me = peer_id(public_bytes(adder._key))
    victim = next(each for each in question.authors if each.author != me)
    root, number = {victim.author: victim.root}, range(question.ranges)
    found = [await adder._shelf.collect(question.round, each, root) for each in number]
    header = Header(adder._info.run_id, question.round, victim.author)
    whole = heard([each[victim.author] for each in found], adder._shape, header)
    return decode(whole, adder._shape)[1]


def make_wrong_sums() -> None:
    """From now on the sums of this process are turned."""

    def turned(*asked: Any) -> Result:
        found = answer_to(*asked)
        question, shape = asked[0], asked[2]
        among = ranges_of(shape.chunks, question.ranges)[question.number]
        levels = decode_sums(found.blob, among.chunks)
        return Result(encode_sums(replace(levels, values=-levels.values)), {})

    summer.answer_to = turned  # type: ignore[attr-defined]


if __name__ == "__main__":
    kinds = {"noise": make_noise, "copies": make_copies, "sums": make_wrong_sums}
    kinds[sys.argv[1]]()
    sys.exit(main(["join", *sys.argv[2:]]))
