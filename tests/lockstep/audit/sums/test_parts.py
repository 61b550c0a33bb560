"""An author's payload is the same, whole or cut in parts; what was not added says nothing."""

from dataclasses import replace

import pytest

from lockstep.audit.records import Named
from lockstep.audit.sums.parts import WholePayloads
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_bits
from protocol.sums.part_list import PartList, PartName, list_of
from protocol.sums.ranges import ranges_of
from tests.support.summed import SummedRound, summed
from tests.support.votes import two_scales

RUN, ROUND, RANGES = RunId("ab" * 16), 7, 4
ONE, OTHER = PeerId("1" * 32), PeerId("2" * 32)
ALGORITHM = AlgorithmSpec(top_k=30, value_bits=2)
SHAPE = PayloadShape.of(ALGORITHM, 11)
PAYLOADS = {
    peer: encode(Header(RUN, ROUND, peer), two_scales(11, 30, seed), SHAPE)
    for seed, peer in enumerate((ONE, OTHER))
}


def a_round(**options: object) -> SummedRound:
    rates = float32_bits(0.01), float32_bits(1.0)
    parts = RUN, ROUND, PAYLOADS, SHAPE, ALGORITHM, rates
    return summed(*parts, ranges=RANGES, **options)  # type: ignore[arg-type]


class Kept:
    """Bytes by digest, and the titles of what was asked for."""

    def __init__(self, blobs: dict[Digest, bytes]) -> None:
        self.blobs, self.asked = blobs, list[str]()

    async def read(self, round: int, named: Named) -> bytes:
        assert round == ROUND
        self.asked.append(named.title)
        if named.digest not in self.blobs:
            raise UnavailableError(f"{named.title} is not here")
        return self.blobs[named.digest]


async def whole(kept: Kept, commit: Commit, entry: Entry) -> bytes:
    payloads = WholePayloads(kept.read, RUN, SHAPE)
    payloads.passed(commit)
    return await payloads.payload(commit.round, entry)


async def test_parts_are_joined_to_the_payload_that_was_cut() -> None:
    made = a_round()
    kept = Kept(made.blobs)
    for entry in made.commit.entries:
        assert await whole(kept, made.commit, entry) == PAYLOADS[entry.author]
    assert kept.asked[:2] == ["the payload of 11111111", "the part of 11111111 in range 0"]
    assert len(kept.asked) == 2 * (1 + RANGES)


async def test_without_sums_a_payload_is_what_its_entry_names() -> None:
    made = a_round()
    entry = replace(made.commit.entries[0], digest=sha256(PAYLOADS[ONE]))
    commit = replace(made.commit, entries=(entry,), sums=None)
    kept = Kept({entry.digest: PAYLOADS[ONE]})
    assert await whole(kept, commit, entry) == PAYLOADS[ONE]
    lists = Kept(made.blobs)
    entry = made.commit.entries[0]
    assert await whole(lists, replace(made.commit, sums=None), entry) == made.lists[ONE].blob


async def test_a_part_that_was_not_added_is_not_asked_for_and_says_nothing() -> None:
    made = a_round(silent={2: [ONE]})
    assert made.commit.sums is not None
    left = made.commit.sums.results[1:]
    commit = replace(made.commit, sums=replace(made.commit.sums, results=left))
    kept = Kept(made.blobs)
    found = await whole(kept, commit, commit.entries[0])
    titles = [f"the part of 11111111 in range {number}" for number in (1, 3)]
    assert kept.asked == ["the payload of 11111111", *titles]
    assert says(found) == [False, True, False, True]
    assert says(await whole(kept, commit, commit.entries[1])) == [False, True, True, True]


def says(payload: bytes) -> list[bool]:
    """For each range, whether a payload says there what its author has said."""
    header, sent = decode(payload, SHAPE)
    whole = decode(PAYLOADS[header.author], SHAPE)[1]
    found = []
    for among in ranges_of(SHAPE.chunks, RANGES):
        there = sent.counts[among.slice]
        assert there.tolist() == whole.counts[among.slice].tolist() or not there.any()
        found.append(bool(there.any()))
    return found


async def test_a_part_that_is_needed_and_not_there_is_said() -> None:
    made = a_round()
    kept = Kept(made.blobs)
    del kept.blobs[sha256(made.parts[ONE][3])]
    with pytest.raises(UnavailableError, match="the part of 11111111 in range 3 is not here"):
        await whole(kept, made.commit, made.commit.entries[0])


@pytest.mark.parametrize("blob", [b"", b"junk", PAYLOADS[ONE], list_of([b"x"] * 3).blob])
async def test_what_is_no_list_of_the_ranges_counts_for_nothing(blob: bytes) -> None:
    made = a_round()
    entry = replace(made.commit.entries[0], digest=sha256(blob))
    commit = replace(made.commit, entries=(entry, made.commit.entries[1]))
    assert await whole(Kept({entry.digest: blob}), commit, entry) == b""


async def test_a_part_that_summers_would_refuse_says_nothing_and_hides_no_other() -> None:
    made = a_round()
    parts = [*made.parts[ONE]]
    parts[1], parts[3] = b"junk", made.parts[OTHER][3]
    listed = list_of(parts)
    entry = replace(made.commit.entries[0], digest=listed.root)
    commit = replace(made.commit, entries=(entry, made.commit.entries[1]))
    blobs = {sha256(blob): blob for blob in (*parts, listed.blob)}
    assert says(await whole(Kept(blobs), commit, entry)) == [True, False, True, False]


async def test_a_part_of_another_length_than_its_list_says_is_heard_by_no_summer() -> None:
    made = a_round()
    names = [*made.lists[ONE].names]
    names[2] = PartName(names[2].digest, names[2].bytes + 1)
    lie = PartList(tuple(names))
    entry = replace(made.commit.entries[0], digest=lie.root)
    commit = replace(made.commit, entries=(entry, made.commit.entries[1]))
    blobs = made.blobs | {lie.root: lie.blob}
    assert says(await whole(Kept(blobs), commit, entry)) == [True, True, False, True]


async def test_parts_that_are_all_anothers_are_its_payload() -> None:
    """So the search for copies finds them by their header."""
    made = a_round()
    listed = made.lists[OTHER]
    entry = replace(made.commit.entries[0], digest=listed.root)
    commit = replace(made.commit, entries=(entry, made.commit.entries[1]))
    found = await whole(Kept(made.blobs), commit, entry)
    assert decode(found, SHAPE)[0].author == OTHER
    assert isinstance(decode(found, SHAPE)[1], Coefficients)
