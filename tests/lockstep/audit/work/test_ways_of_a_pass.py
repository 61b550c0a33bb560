"""How a pass is made is the node's own business: its payload says the same, and the audit of work
takes every way for honest work.
"""

from collections.abc import Callable

import numpy as np
import pytest

from lockstep.audit.work.judge import Book, PayloadAudit
from lockstep.audit.work.recompute import Recomputer
from node.data.corpus import Corpus
from node.model import head, training
from node.replica.replica import Replica
from protocol.codec.commits import Commit
from protocol.codec.payload import Header, PayloadShape, decode
from protocol.ids import PeerId, sha256
from protocol.limits import CHUNK_ENTRIES
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share
from tests.lockstep.audit.work.crowd import DEMO, LOCAL_STEPS, SHARE, Crowd
from tests.lockstep.audit.work.panels import DRAW, RUN, round_of

ROUNDS = 3

ALIKE, COMMON = 0.99, 0.85
"""Least part of equal signs among those that two ways send, and of all signs that these are. Muon
computes in bfloat16, and gradients and residual are kept in it, so what is rounded otherwise moves
some entries across the bound of the k largest: ways that add in another order have 0.89 to 0.98 in
common."""

PIECE_ENTRIES = 7 * 257
"""Logits of seven tokens."""


def as_it_is(replica: Replica) -> None:
    """Activations kept, nothing compiled."""


def recomputed(replica: Replica) -> None:
    assert replica.trainee.recompute()


def compiled(backend: str, *, again: bool = False) -> Callable[[Replica], None]:
    def compile_blocks(replica: Replica) -> None:
        trainee = replica.trainee
        assert not again or trainee.recompute()
        algorithm, length = replica._spec.algorithm, replica._spec.data.sequence_length
        trainee.compile(backend, algorithm.batch_samples(SHARE), length)
        assert trainee.blocks.are_compiled

    return compile_blocks


WAYS = {
    "by pieces": as_it_is,
    "computed again": recomputed,
    "compiled, eager": compiled("eager"),
    "compiled, aot_eager": compiled("aot_eager"),
    "compiled and computed again": compiled("aot_eager", again=True),
}


def signs(payload: bytes, shape: PayloadShape) -> np.ndarray:
    """What a payload says of each place: int8 [chunks, entries]."""
    found = decode(payload, shape)[1]
    said = np.zeros((len(found.counts), CHUNK_ENTRIES), np.int8)
    chunks = np.repeat(np.arange(len(found.counts)), found.counts)
    said[chunks, found.indices] = np.sign(found.values)
    return said


def sent(crowd: Crowd, replica: Replica, round: int) -> bytes:
    """What a node sends of the round's samples, as the first author of the crowd."""
    crowd._train(replica, round * SHARE)
    header = Header(crowd.info.run_id, round, crowd.authors[0])
    return replica.encoded(header, replica.extract(round))[0]


def looks_at(
    recomputer: Recomputer, crowd: Crowd, commit: Commit, said: list[bytes]
) -> list[PayloadAudit]:
    """The audit of payloads of the round, each as an author of its own."""
    recomputer.stand_at(crowd.replica.committed, commit.learning_rate_bits)
    work = recomputer.begin([Share(commit.round * SHARE, SHARE)])
    while work.next():
        pass
    work.finish()
    found = [recomputer.agreement(each, None) for each in said]
    return [
        PayloadAudit(PeerId(f"{place:032x}"), sha256(payload), each.share, each.compared, age=500)
        for place, (payload, each) in enumerate(zip(said, found, strict=True))
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about its own parts
@pytest.mark.parametrize("algorithm", [DEMO, LOCAL_STEPS], ids=lambda each: each.name)
def test_every_way_of_a_pass_sends_the_same_signs_and_is_honest_work(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, algorithm: AlgorithmSpec
) -> None:
    """All ways train the same samples of the same states: those of a run of the plain way alone."""
    plain = Crowd(corpus, 1, algorithm=algorithm)
    others = {name: plain.at_genesis() for name in WAYS}
    for name, way in WAYS.items():
        way(others[name])
    recomputer, book = Recomputer(plain.info.spec, corpus), Book(algorithm.name)
    for round in range(ROUNDS):
        commit, _ = plain.work()
        payloads = [plain.payloads[commit.entries[0].digest]]
        for name, replica in others.items():
            with monkeypatch.context() as patch:
                for module in (head, training) if name == "by pieces" else ():
                    patch.setattr(module, "PIECE_ENTRIES", PIECE_ENTRIES)
                payloads.append(sent(plain, replica, round))
        first, *said = (signs(each, plain.replica.shape) for each in payloads)
        for name, found in zip(others, said, strict=True):
            both = (found != 0) & (first != 0)
            assert both.sum() >= COMMON * np.count_nonzero(first), f"{name}, round {round}"
            assert (found == first)[both].mean() >= ALIKE, f"{name}, round {round}"
        looks = looks_at(recomputer, plain, commit, payloads)
        assert max(e.agreement for e in looks) - min(e.agreement for e in looks) < 0.02
        assert Book(algorithm.name).take_early(round, looks, RUN) == []
        assert book.take(round_of(round), looks, RUN, DRAW) == []
        plain.apply(commit)
        for replica in others.values():
            assert replica.apply(commit, payloads[:1]) == plain.replica.digest
    assert book.audits, "nothing was judged"
