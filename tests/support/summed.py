"""A round that summers have added: its parts, results and commit, as honest nodes make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.codec.commit_sums import AuthorSet, RangeSum, Sums
from protocol.codec.commits import Commit, Entry, author_list_bytes, genesis_digest
from protocol.codec.payload import Blob, PayloadShape
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_value
from protocol.sums.adding import COARSE, Author, result_of
from protocol.sums.movements import code_max_of
from protocol.sums.part_list import PartList, list_of
from protocol.sums.parts import cut, shape_of
from protocol.sums.ranges import ranges_of
from protocol.sums.results import authors_behind


@dataclass(frozen=True, slots=True)
class SummedRound:
    """One round with sums."""

    commit: Commit
    results: list[bytes]
    """In the order of `Commit.needed`."""
    parts: Mapping[PeerId, Sequence[bytes]]
    lists: Mapping[PeerId, PartList]
    shape: PayloadShape
    """That of a whole payload."""

    @property
    def blobs(self) -> dict[Digest, bytes]:
        """Everything that members of the run keep of the round, by digest."""
        found = [*self.results, *(each.blob for each in self.lists.values())]
        found += [part for parts in self.parts.values() for part in parts]
        return {sha256(blob): blob for blob in found}


def sums_of(ranges: int, results: Sequence[RangeSum], entries: Sequence[Entry]) -> Sums:
    """Results for these entries of a commit, without a look at their work."""
    count = len(entries) or 1
    name = sha256(author_list_bytes(entries, results))
    return Sums(ranges, tuple(results), AuthorSet(count, count, count, 200), name)


def summed(
    run_id: RunId,
    round: int,
    payloads: Mapping[PeerId, Blob],
    shape: PayloadShape,
    algorithm: AlgorithmSpec,
    rate_bits: tuple[int, int],
    *,
    ranges: int = 3,
    samples: int | Mapping[PeerId, int] = 3,
    silent: Mapping[int, Sequence[PeerId]] | None = None,
    previous: Digest | None = None,
) -> SummedRound:
    """A round of these payloads; `samples` are those of each author. `silent`: authors without a
    part in a range, which every honest summer adds as nothing.
    """
    authors = sorted(payloads)
    parts = {author: cut(payloads[author], shape, ranges) for author in authors}
    lists = {author: list_of(parts[author]) for author in authors}
    trained = samples if isinstance(samples, Mapping) else dict.fromkeys(authors, samples)
    rate = float32_value(rate_bits[0])
    counted = [Author(a, trained[a], code_max_of(trained[a], rate, algorithm)) for a in authors]
    results, sums = list[bytes](), list[RangeSum]()
    for number, among in enumerate(ranges_of(shape.chunks, ranges)):
        unheard = (silent or {}).get(number, ())
        given = {a: b"" if a in unheard else parts[a][number] for a in authors}
        found = result_of(run_id, round, counted, given, shape_of(shape, among), COARSE)
        places = tuple(sorted(authors.index(author) for author in unheard))
        sums.append(RangeSum(number, found.digest, len(found.blob), places))
        results.append(found.blob)
    entries = tuple(
        Entry(a, lists[a].root, sum(map(len, parts[a])), trained[a], trained[a]) for a in authors
    )
    about = run_id, round, round, entries, *rate_bits, previous or genesis_digest(run_id)
    authors_of = authors_behind(entries, rate_bits[0], algorithm)
    name = sha256(author_list_bytes(entries, sums))
    made = Commit(*about, sums=Sums(ranges, tuple(sums), authors_of, name))
    return SummedRound(made, results, parts, lists, shape)
