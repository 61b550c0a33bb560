"""Heads of a run's history: which commits its coordinator's key has signed, and the proof that it
has signed two where one may be.

A head is a commit without its body: round, step, digest and the commit's own signature, which
covers these. Steps count commits, so a history has one commit for each step up to its newest, and
two histories of one run differ in every step from their fork on. Whoever holds two heads of one
step, or of one round, with unlike digests holds a proof against the key.

    taken: commits of the coordinator that one follows     shown: heads that anybody shows
    equal, or older than what is remembered   nothing new, and its signature is not even looked at
    another signature                         counted, and forgotten
    newer than every commit taken             remembered, until the commit of its step is taken
    unlike the known one of its step          a proof

Pure.
"""

import contextlib
from dataclasses import dataclass
from typing import Literal

import msgspec

from protocol import wire_pb2 as wire
from protocol.border.text import one_line
from protocol.codec.commits import Commit, SignedCommit, require_signed, signed_bytes
from protocol.codec.decoding import UNREADABLE
from protocol.errors import DataError, RemoteProtocolError
from protocol.handshake import KEY_BYTES, SIGNATURE_BYTES
from protocol.ids import Digest, RunId, parse_digest, sha256

TAKEN_MAX = 1024
"""Newest commits taken whose heads are remembered: hours of rounds, and a quarter of a megabyte."""

SHOWN_MAX = 64
"""Heads of commits not taken yet that are remembered; an honest run has one or two."""

PROOF_BYTES_MAX = 4096
"""Length of a proof's file: two heads in hexadecimal, and some words."""

PROOF_NAME = "equivocation.json"
"""The proof's file in the directory of the party that found it."""


@dataclass(frozen=True, slots=True)
class Head:
    """A commit that a coordinator's key has signed, without its body."""

    round: int
    step: int
    digest: Digest
    signature: bytes

    @property
    def message(self) -> wire.Head:
        """The head for the network: some 110 bytes."""
        return wire.Head(
            round=self.round, step=self.step, digest=self.digest, signature=self.signature
        )


def head_of(commit: Commit, signed: SignedCommit) -> Head:
    """The head of a commit whose signature was checked."""
    return Head(commit.round, commit.step, sha256(signed.body), signed.signature)


def open_head(said: wire.Head, coordinator_key: bytes, run_id: RunId) -> Head:
    """The head in a message; `RemoteProtocolError` unless the coordinator of the run signed it."""
    if min(said.round, said.step) < 0 or len(said.signature) != SIGNATURE_BYTES:
        raise RemoteProtocolError("expected the head of a commit, got another message")
    head = Head(said.round, said.step, parse_digest(said.digest), said.signature)
    content = signed_bytes(run_id, head.round, head.step, head.digest)
    require_signed("the head of a commit", content, head.signature, coordinator_key)
    return head


def conflict(one: Head, other: Head) -> bool:
    """Whether no history has both commits."""
    same_place = one.step == other.step or one.round == other.round
    return same_place and one.digest != other.digest


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Two heads of one run that conflict, both signed by its coordinator's key."""

    run_id: RunId
    coordinator_key: bytes
    first: Head
    second: Head

    @property
    def words(self) -> str:
        """What is proven, in one sentence."""
        one, other = self.first, self.second
        where = (
            f"round {one.round}"
            if one.round == other.round
            else f"step {one.step}, in rounds {one.round} and {other.round}"
        )
        return (
            f"the coordinator's key {self.coordinator_key.hex()[:16]} has signed two different "
            f"commits of {where} of run {self.run_id}"
        )

    def document(self) -> bytes:
        """The proof as a file."""
        heads = _described(self.first), _described(self.second)
        proof = _Proof(self.run_id, self.coordinator_key.hex(), heads)
        return msgspec.json.format(msgspec.json.encode(proof)) + b"\n"


class _ProofHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    round: int
    step: int
    digest: str
    signature: str


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run_id: RunId
    coordinator_key: str
    heads: tuple[_ProofHead, _ProofHead]
    proves: Literal["two histories of one run"] = "two histories of one run"


def read_proof(blob: bytes) -> Equivocation:
    """The proof in a file, checked with nothing but itself; `DataError` says why it is none."""
    if len(blob) > PROOF_BYTES_MAX:
        raise DataError(f"expected a proof of at most {PROOF_BYTES_MAX} bytes, got {len(blob)}")
    try:
        proof = msgspec.json.decode(blob, type=_Proof)
        key, run_id = bytes.fromhex(proof.coordinator_key), bytes.fromhex(proof.run_id).hex()
        heads = [_undescribed(head) for head in proof.heads]
    except (*UNREADABLE, ValueError) as error:
        reason = one_line(str(error))
        raise DataError(f"expected a proof of two histories, got another file: {reason}") from None
    if len(key) != KEY_BYTES:
        raise DataError(f"expected a key of {KEY_BYTES} bytes, got one of {len(key)}")
    try:
        first, second = (open_head(head, key, RunId(run_id)) for head in heads)
    except RemoteProtocolError as error:
        raise DataError(str(error)) from None
    if not conflict(first, second):
        raise DataError(
            "expected two different commits of one round or step, got two that one history can have"
        )
    return Equivocation(RunId(run_id), key, first, second)


def _described(head: Head) -> _ProofHead:
    return _ProofHead(head.round, head.step, head.digest.hex(), head.signature.hex())


def _undescribed(head: _ProofHead) -> wire.Head:
    digest, signature = bytes.fromhex(head.digest), bytes.fromhex(head.signature)
    return wire.Head(round=head.round, step=head.step, digest=digest, signature=signature)


class Heads:
    """The heads of one run that one party knows; bounded. See the module."""

    def __init__(self, run_id: RunId, coordinator_key: bytes) -> None:
        self.run_id, self.coordinator_key = run_id, coordinator_key
        self.own: Head | None = None
        """The newest commit taken."""
        self.forged = 0
        """Heads shown that the coordinator's key has not signed."""
        self.equivocation: Equivocation | None = None
        """The first proof found."""
        self._taken: dict[int, Head] = {}
        self._shown: dict[int, Head] = {}

    @property
    def unseen(self) -> Head | None:
        """The newest head shown of a commit that the coordinator did not give; None: there is
        none.
        """
        return self._shown[max(self._shown)] if self._shown else None

    @property
    def newest(self) -> Head | None:
        """The newest head known."""
        return self.unseen or self.own

    def take(self, commit: Commit, signed: SignedCommit) -> None:
        """Know a commit of the coordinator that one follows, its signature checked. Old ones may
        come again; one of another run is left out.
        """
        if commit.run_id == self.run_id:
            self._take(head_of(commit, signed))

    def _take(self, head: Head) -> None:
        for known in (self._taken.get(head.step), self._shown.get(head.step)):
            if known and known.digest != head.digest:
                self._found(known, head)
        self._taken[head.step] = head
        if self.own is None or head.step > self.own.step:
            self.own = head
            self._shown = {step: each for step, each in self._shown.items() if step > head.step}
        while len(self._taken) > TAKEN_MAX:
            del self._taken[min(self._taken)]

    def restore(self, said: wire.Head) -> None:
        """Know the newest commit that was taken before this start; one that is not signed is
        forgotten.
        """
        with contextlib.suppress(RemoteProtocolError):
            self._take(open_head(said, self.coordinator_key, self.run_id))

    def show(self, said: wire.Head) -> None:
        """Weigh a head that somebody shows. Nothing that it can hold raises."""
        known = self._taken.get(said.step) or self._shown.get(said.step)
        is_old = known is None and self.own is not None and said.step <= self.own.step
        if is_old or (known and known.digest == said.digest):
            return
        try:
            head = open_head(said, self.coordinator_key, self.run_id)
        except RemoteProtocolError:
            self.forged += 1
            return
        if known:
            self._found(known, head)
        elif len(self._shown) < SHOWN_MAX:
            self._shown[head.step] = head

    def _found(self, known: Head, head: Head) -> None:
        self.equivocation = self.equivocation or Equivocation(
            self.run_id, self.coordinator_key, known, head
        )
