"""Payloads of made-up authors, as a log has them: places and signs by chance, no network."""

import numpy as np

from lockstep.audit.copies.likeness import Sent
from lockstep.audit.copies.payloads import Payloads
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId, sha256
from protocol.limits import CHUNK_ENTRIES
from protocol.run_info import RunInfo
from protocol.runfile import run_id
from tests.support.tiny import DEMO, tiny_spec

KEY = b"k" * 32
SPEC = tiny_spec(overlap=0, algorithm=DEMO)
INFO = RunInfo(SPEC, run_id(SPEC, KEY), KEY)
SHAPE = PayloadShape(chunks=24, top_k=32, value_bits=1)
A, B, C, D = (PeerId(f"{number + 1:032x}") for number in range(4))


class Post:
    """The payloads of one log."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.payloads: dict[Digest, bytes] = {}
        self.commits: list[Commit] = []
        self.read = Payloads(self.payload, SHAPE)

    async def payload(self, round: int, entry: Entry) -> bytes:
        if entry.digest not in self.payloads:
            raise UnavailableError("nobody gives it")
        return self.payloads[entry.digest]

    def work(self) -> Coefficients:
        """Coefficients that nobody else has."""
        places = [
            np.sort(self.random.choice(CHUNK_ENTRIES, SHAPE.top_k, replace=False))
            for _ in range(SHAPE.chunks)
        ]
        counts = np.full(SHAPE.chunks, SHAPE.top_k, np.uint16)
        signs = self.random.choice(np.array([-1, 1], np.int16), int(counts.sum()))
        return Coefficients(counts, np.concatenate(places).astype(np.uint16), signs)

    def near(self, like: Coefficients, part: float) -> Coefficients:
        """Coefficients that share this part of their places, of all chunks, with others."""
        other, places, signs = self.work(), list[int](), list[int]()
        for chunk in range(SHAPE.chunks):
            span = slice(chunk * SHAPE.top_k, (chunk + 1) * SHAPE.top_k)
            kept = self.random.choice(SHAPE.top_k, round(part * SHAPE.top_k), replace=False)
            row = dict(zip(like.indices[span][kept], like.values[span][kept], strict=True))
            for place, sign in zip(other.indices[span], other.values[span], strict=True):
                if len(row) < SHAPE.top_k and place not in row:
                    row[place] = sign
            while len(row) < SHAPE.top_k:
                row.setdefault(np.uint16(self.random.integers(CHUNK_ENTRIES)), np.int16(1))
            for place in sorted(row):
                places.append(int(place))
                signs.append(int(row[place]))
        indices, values = np.array(places, np.uint16), np.array(signs, np.int16)
        return Coefficients(other.counts, indices, values)

    def commit(self, sent: dict[PeerId, Coefficients | bytes]) -> Commit:
        """The commit of the next round, of these payloads."""
        round, entries = len(self.commits), list[Entry]()
        for author, work in sent.items():
            header = Header(INFO.run_id, round, author)
            blob = encode(header, work, SHAPE) if isinstance(work, Coefficients) else work
            digest = sha256(blob)
            self.payloads[digest] = blob
            entries.append(Entry(author, digest, len(blob), 1, 1))
        commit = Commit(INFO.run_id, round, round, tuple(entries), 0, 0, Digest(bytes(32)))
        self.commits.append(commit)
        return commit

    def sent(self, round: int, author: PeerId) -> Sent:
        """An author's payload of a round."""
        (found,) = [each for each in self.commits[round].entries if each.author == author]
        return Sent(round, author, found.digest)
