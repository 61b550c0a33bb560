"""Authors of one tiny run without overlap, in this process: real networks, gradients, payloads and
commits, no coordinator and no network.
"""

import numpy as np
import torch

from node.data.corpus import Corpus
from node.replica.factory import replica_for
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Coefficients, Header, decode, encode
from protocol.codec.scales import CODE_MAX
from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId, sha256
from protocol.limits import CHUNK_ENTRIES
from protocol.run_info import RunInfo
from protocol.runfile import AlgorithmSpec, RunSpec, run_id
from protocol.schedule import scalars
from tests.benchmarks.attack.payloads import Shadow
from tests.support.tiny import tiny_spec

KEY = b"k" * 32
SHARE = 8
"""Samples of an author in a round."""


SHADOW = 0.5
"""Share of its places that a shadow turns."""

DEMO = AlgorithmSpec(name="demo", top_k=64)
LOCAL_STEPS = AlgorithmSpec(name="local_steps", top_k=64, local_samples=3)
"""Three steps of a share, the last one of two samples."""


def spec_for(corpus: Corpus, algorithm: AlgorithmSpec = DEMO) -> RunSpec:
    spec = tiny_spec(steps=1000, overlap=0)
    data = spec.data.model_copy(update={"manifest_sha256": corpus.manifest.digest.hex()})
    return spec.model_copy(update={"data": data, "algorithm": algorithm})


class Crowd:
    """Authors A, B, ...; those in `noisy` send places and signs by chance, those in `turned` every
    sign turned, those in `copying` what A sends in the same round, those in `shadows` the signs
    turned where they say much.
    """

    def __init__(
        self,
        corpus: Corpus,
        authors: int,
        noisy: tuple[int, ...] = (),
        turned: tuple[int, ...] = (),
        copying: tuple[int, ...] = (),
        shadows: tuple[int, ...] = (),
        algorithm: AlgorithmSpec = DEMO,
    ) -> None:
        torch.set_num_threads(1)
        spec = spec_for(corpus, algorithm)
        self.info = RunInfo(spec, run_id(spec, KEY), KEY)
        self.corpus, self.authors = corpus, [PeerId(f"{n + 1:032x}") for n in range(authors)]
        self.replica = self.at_genesis()
        """The committed state, as an auditor has it."""
        self._own = [self.at_genesis() for _ in self.authors]
        self.noisy = {self.authors[number] for number in noisy}
        self.turned = {self.authors[number] for number in turned}
        self.copying = {self.authors[number] for number in copying}
        self.shadows = {self.authors[number] for number in shadows}
        self.payloads: dict[Digest, bytes] = {}
        self.round = 0
        self._random = np.random.default_rng(0)

    def at_genesis(self) -> Replica:
        """The state at which the run begins."""
        return replica_for(self.info.spec, self.info.run_id, torch.device("cpu"), SHARE)

    def work(self) -> tuple[Commit, wire.Committed]:
        """The next round: every author trains and sends. The commit, and what the log says of it;
        it is not applied yet.
        """
        entries, trained = [], []
        for place, (author, replica) in enumerate(zip(self.authors, self._own, strict=True)):
            first = (self.round * len(self.authors) + place) * SHARE
            self._train(replica, first)
            header = Header(self.info.run_id, self.round, author)
            payload, _ = replica.encoded(header, replica.extract(self.round))
            if author in self.noisy:
                payload = self._noise(header, payload)
            if author in self.copying:
                origin = self.payloads[entries[0].digest]
                payload = encode(header, decode(origin, replica.shape)[1], replica.shape)
            if author in self.turned:
                payload = self._turned(header, payload)
            if author in self.shadows:
                found = Shadow(SHADOW, SHADOW).made_of(
                    decode(payload, replica.shape)[1], CODE_MAX, self.round
                )
                payload = encode(header, found, replica.shape)
            digest = sha256(payload)
            self.payloads[digest] = payload
            entries.append(Entry(author, digest, len(payload), 1, SHARE))
            trained.append(wire.Trained(shares=[wire.Share(first=first, count=SHARE)]))
        rates = scalars(self.info.spec.schedule, self.round)
        commit = Commit(
            self.info.run_id, self.round, self.round, tuple(entries), *rates, Digest(bytes(32))
        )
        return commit, wire.Committed(trained=trained)

    def _train(self, replica: Replica, first: int) -> None:
        """The passes of a node over a share."""
        spec = self.info.spec
        size = spec.algorithm.batch_samples(SHARE)
        batches = [
            self.corpus.batch(start, min(size, first + SHARE - start), 32, spec.seed)
            for start in range(first, first + SHARE, size)
        ]
        passes = replica.begin(batches, None, scalars(spec.schedule, self.round))
        while passes.next():
            pass
        passes.finish()
        replica.accumulate()

    def apply(self, commit: Commit) -> None:
        """Everybody makes the commit's step."""
        payloads = [self.payloads[entry.digest] for entry in commit.entries]
        for replica in (self.replica, *self._own):
            replica.apply(commit, payloads)
        self.round += 1

    async def payload(self, round: int, entry: Entry) -> bytes:
        if entry.digest not in self.payloads:
            raise UnavailableError("nobody gives it")
        return self.payloads[entry.digest]

    def _turned(self, header: Header, payload: bytes) -> bytes:
        shape = self.replica.shape
        found = decode(payload, shape)[1]
        return encode(
            header, Coefficients(found.counts, found.indices, -found.values, found.scales), shape
        )

    def _noise(self, header: Header, payload: bytes) -> bytes:
        shape = self.replica.shape
        like = decode(payload, shape)[1]
        counts = like.counts
        places = [
            np.sort(self._random.choice(CHUNK_ENTRIES, count, replace=False)) for count in counts
        ]
        signs = self._random.choice(np.array([-1, 1], np.int16), int(counts.sum()))
        found = Coefficients(counts, np.concatenate(places).astype(np.uint16), signs, like.scales)
        return encode(header, found, shape)
