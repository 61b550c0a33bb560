"""The product's audit of authors beside one case, in the time of rounds.

Copies and turned signs are looked for by the product's `CopyWatch`, in the bytes of payloads. Work
is audited by the product's draw, budget and judge (`lockstep.audit.work.auditing`), but on the
clock of rounds: an audit takes as long as an author takes for its round. What is found
reaches the coordinator `DELAY_ROUNDS` later.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.copies.payloads import Payloads
from lockstep.audit.copies.twins import copies
from lockstep.audit.copies.watching import CopyWatch
from lockstep.audit.work.ages import Ages
from lockstep.audit.work.auditing import drawn, look_of, proven
from lockstep.audit.work.judge import Book
from lockstep.audit.work.lottery import Budget
from node.exact.sign_audit import Agreement, Signs
from protocol.audit.lots import draw
from protocol.audit.rule import EARLY_ROUNDS, PANEL
from protocol.codec.commits import Commit, Entry
from protocol.codec.evidence import WHOLE, Evidence
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.ids import Digest, PeerId, sha256
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec, run_id
from protocol.schedule import float32_bits
from tests.benchmarks.attack.cases import AUDIT_BUDGET, AUTHORS

PEERS = [PeerId(f"{number + 1:032x}") for number in range(AUTHORS)]

Sent = Mapping[int, Coefficients]
"""The payloads of a round, by author."""

Follow = Callable[[int, int], Signs]
"""Where the payload of the second author has the signs of the first one's movement."""


class Auditor:
    """All that a named auditor does about authors. `directory` is for its notes."""

    def __init__(self, spec: RunSpec, shape: PayloadShape, seed: int, directory: Path) -> None:
        key = b"k" * 32
        self._info = RunInfo(spec, run_id(spec, key), key)
        self._shape, secret = shape, seed.to_bytes(32)
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self._blobs: dict[Digest, bytes] = {}
        self._found: list[Evidence] = []
        self._watch = CopyWatch(
            self._info,
            secret=secret,
            tell=self._found.append,
            path=directory / f"copies-{seed}.json",
        )
        self._book, self._ages = Book(spec.algorithm.name), Ages()
        self._budget = Budget(AUDIT_BUDGET)
        self._runner = asyncio.Runner()
        self.audits: list[tuple[int, int, float]] = []
        """Round, author and share of signs that agree."""

    def close(self) -> None:
        """Give the threads back."""
        self._runner.close()

    def look(
        self,
        number: int,
        sent: Sent,
        samples: int,
        rate: float,
        audit: Callable[[int], Agreement],
        follow: Follow,
    ) -> dict[int, Evidence]:
        """The evidence that the payloads of a round bring, by author, each of this many samples, at
        this learning rate. `audit` computes an author's movement again, `follow` holds another's
        payload against it too.
        """
        self._found.clear()
        commit = self._commit(number, sent, samples, rate)
        read = Payloads(self._payload, self._shape)
        named = self._runner.run(self._watch.look(commit, frozenset(), read, restarts=0))
        audited = len(self.audits)
        self._found += self._work(commit, frozenset(named), audit)
        there = {author for _, author, _ in self.audits[audited:]}
        self._found += self._copies(there, follow)
        return {PEERS.index(each.author): each for each in self._found}

    def _copies(self, audited: set[int], follow: Follow) -> list[Evidence]:
        """What the movements of the audited authors tell of like payloads."""
        followed = {}
        for pair in self._watch.twins:
            peers = (pair.one.author, pair.other.author)
            for one, other in product(peers, peers):
                if PEERS.index(one) in audited:
                    followed[one, other] = follow(PEERS.index(one), PEERS.index(other))
        by = self._info.spec.algorithm.facts.thresholds
        return copies(self._watch.twins, followed, self._info.run_id, by)

    def _work(
        self, commit: Commit, named: frozenset[PeerId], audit: Callable[[int], Agreement]
    ) -> list[Evidence]:
        number, entries = commit.round, {entry.author: entry for entry in commit.entries}
        self._budget.earn(float(number), len(entries))
        self._ages.committed(number, {peer: entry.samples for peer, entry in entries.items()})
        if not self._budget.allows:
            return []
        lot = draw(self._key, self._info.run_id, number, round(WHOLE * AUDIT_BUDGET))
        if number >= EARLY_ROUNDS and not lot.is_drawn(len(entries), panel=PANEL):
            return []
        authors = drawn(lot, number, entries, named, book=self._book, ages=self._ages)
        looks = []
        for peer in authors:
            author = PEERS.index(peer)
            found = audit(author)
            self.audits.append((number, author, round(found.share, 4)))
            looks.append(look_of(entries[peer], found, self._ages))
        self._budget.spend(float(len(looks)))
        return proven(self._book, number, looks, self._info.run_id, lot)

    def _commit(self, number: int, sent: Sent, samples: int, rate: float) -> Commit:
        entries = []
        for author, found in sent.items():
            header = Header(self._info.run_id, number, PEERS[author])
            blob = encode(header, found, self._shape)
            digest = sha256(blob)
            self._blobs[digest] = blob
            entries.append(Entry(PEERS[author], digest, len(blob), samples, samples))
        rates = float32_bits(rate), float32_bits(1.0)
        return Commit(self._info.run_id, number, number, tuple(entries), *rates, Digest(bytes(32)))

    async def _payload(self, round: int, entry: Entry) -> bytes:
        return self._blobs[entry.digest]
