"""Heads and proofs that strangers make: a proof against a key comes from its signatures alone."""

from dataclasses import replace

from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, SignedCommit, genesis_digest, sign_commit
from protocol.codec.heads import Equivocation, Heads, head_of, open_head, read_proof
from protocol.handshake import public_bytes
from protocol.ids import sha256
from tests.fuzz.targets import KEY, PEER, RUN, Target, parsed

PUBLIC = public_bytes(KEY)


def _commits() -> list[tuple[Commit, SignedCommit]]:
    """Steps 2 and 3 of one history, and step 2 of another."""
    entry = Entry(PEER, sha256(b"payload"), 100, 1, 7)
    one = Commit(RUN, 3, 2, (entry,), 0, 0, genesis_digest(RUN))
    commits = one, replace(one, round=5, step=3), replace(one, decay_bits=1)
    return [(commit, sign_commit(commit, KEY)) for commit in commits]


HISTORY = _commits()
SIGNED = [head_of(commit, signed) for commit, signed in HISTORY]


def judge_head(blob: bytes) -> None:
    """A head that the key has not signed is counted, and changes nothing else."""
    said: wire.Head = parsed(wire.Head, blob)  # type: ignore[assignment]
    heads = Heads(RUN, PUBLIC)
    heads.take(*HISTORY[0])
    heads.show(said)
    assert heads.newest in SIGNED, "a head that the key has not signed is shown on"
    if heads.equivocation:
        assert heads.equivocation.second in SIGNED, "a proof of what the key has not signed"
        assert read_proof(heads.equivocation.document()) == heads.equivocation
    open_head(said, PUBLIC, RUN)


def judge_proof(blob: bytes) -> None:
    """What is proven is signed, and reads the same once more."""
    proof = read_proof(blob)
    assert {proof.first, proof.second} == {SIGNED[0], SIGNED[2]}
    assert read_proof(proof.document()) == proof
    assert proof.words.isprintable()


def targets() -> dict[str, Target]:
    """The two readers by name."""
    heads = tuple(head.message.SerializeToString() for head in SIGNED)
    proof = Equivocation(RUN, PUBLIC, SIGNED[0], SIGNED[2]).document()
    return {"head": Target(judge_head, heads, 50), "proof": Target(judge_proof, (proof,), 50)}
