"""Commits: the coordinator's decision to apply a round, in a hash chain under its signature.

A commit's canonical bytes are the msgpack map of its fields in declaration order; its digest is
their SHA-256; `previous` is the digest of the commit before it (the run id's own hash for the
first), so the head names the whole history. The ed25519 signature covers a domain tag, the run, the
commit's round and step, and the digest: with these three it says without the body which commit
stands where (`protocol.codec.heads`). Skipped rounds leave no commit: a round that the head has
passed and no commit names was skipped.

    commit 0 <- commit 1 <- commit 3 (round 2 was skipped) <- ... head

In a run whose nodes mix parameters, a commit names the edges that hold (`mix`). In a round whose
payloads were added by summers it names their results, and in the place of its entries their list by
its digest (`sums`):

    body   <- entries: none, results, what a step needs of the authors, SHA-256 of the list
    list   <- entries, and who says nothing in which range: told to whoever audits

A field that says nothing is left out of the bytes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.codec.commit_sums import RangeSum, Sums, require_silent, require_sums
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id, sha256, short
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT, VOTE_SUM_MAX

_DOMAIN = b"lockstep.commit.v1"

_TEXT_BYTES_MAX = 64
"""Bytes of the longest string in a commit: an id of 32 characters, and room for a longer one
that a clear error then names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One payload that counts."""

    author: PeerId
    digest: Digest
    payload_bytes: int
    weight: int
    samples: int

    @property
    def title(self) -> str:
        """What it names, in words."""
        return f"the payload of {short(self.author)}"


Needed = Entry | RangeSum
"""What names bytes that make a step."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The exchange of parameters in a round. With `mean` every node takes the mean of all entries,
    also one without an entry, and there are no edges.
    """

    mean: bool
    edges: tuple[tuple[int, int, int], ...] = ()
    """(first, second, divisor), sorted: these two entries, by their places, take 1 / divisor of
    each other. What is left of each stays its own."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The payloads and scalars that every replica applies for one round; scalars are float32
    bits.
    """

    run_id: RunId
    round: int
    step: int
    entries: tuple[Entry, ...]
    """Sorted by author. None in a round with sums whose list of authors was not told."""
    learning_rate_bits: int
    decay_bits: int
    previous: Digest
    mix: Mix | None = None
    """None where every node applies every payload."""
    sums: Sums | None = None
    """None where nodes apply the payloads themselves."""

    @property
    def authors(self) -> int:
        """The number of those whose payloads count, also where they are not told."""
        return self.sums.authors.count if self.sums else len(self.entries)

    @property
    def needed(self) -> tuple[Needed, ...]:
        """What names the bytes of the step: the results of ranges, or all entries."""
        return self.sums.results if self.sums else self.entries

    @property
    def result_bytes(self) -> int:
        """Bytes of the sums that nodes fetch in place of its payloads; 0 where they fetch these."""
        return sum(result.payload_bytes for result in self.sums.results) if self.sums else 0

    def needed_by(self, peer: PeerId) -> tuple[Needed, ...]:
        """Those of them that one node needs."""
        if self.mix is None or self.mix.mean:
            return self.needed
        shares = self.shares_of(peer)
        return tuple(entry for entry in self.entries if entry.author in shares)

    def staying(self, voids: Collection[Digest] = ()) -> list[Digest] | None:
        """What stays of what a node holds of the round. None: all, as the lists and parts of a
        round with sums are for whoever audits it.
        """
        named = [each.digest for each in self.needed if each.digest not in voids]
        return None if self.sums else named

    def only(self, digests: Collection[Digest]) -> "Commit":
        """The commit as if it named no other bytes than these."""
        if self.sums:
            results = tuple(each for each in self.sums.results if each.digest in digests)
            return replace(self, sums=replace(self.sums, results=results))
        return replace(self, entries=tuple(e for e in self.entries if e.digest in digests))

    def shares_of(self, peer: PeerId) -> dict[PeerId, Fraction]:
        """The share that a node takes of each member's parameters, its own included; together 1.
        Empty for a node that mixes nothing.
        """
        if self.mix is None:
            return {}
        authors = [entry.author for entry in self.entries]
        if self.mix.mean:
            return dict.fromkeys(authors, Fraction(1, len(authors)))
        if peer not in authors:
            return {}
        place = authors.index(peer)
        shares = {
            authors[second if first == place else first]: Fraction(1, divisor)
            for first, second, divisor in self.mix.edges
            if place in (first, second)
        }
        return {**shares, peer: 1 - sum(shares.values(), Fraction())}


class _AuthorList(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The fields of entries, and for each result those that are silent in it."""

    entries: list[tuple[PeerId, Digest, int, int, int]]
    silent: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SignedCommit:
    """A commit's canonical bytes with the coordinator's signature."""

    body: bytes
    signature: bytes
    author_list: bytes = b""
    """The list of authors that the body names in a round with sums; empty where it is not told."""


def genesis_digest(run_id: RunId) -> Digest:
    """`previous` of a run's first commit."""
    return sha256(b"lockstep.genesis.v1" + run_id.encode())


def commit_bytes(commit: Commit) -> bytes:
    """Canonical bytes of a commit."""
    fields = msgspec.to_builtins(commit, builtin_types=(bytes,))
    for name in ("mix", "sums"):
        if fields[name] is None:
            del fields[name]
    if commit.sums:
        fields["entries"] = []
        for result in fields["sums"]["results"]:
            del result["silent"]
    return packed(fields)


def author_list_bytes(entries: Sequence[Entry], results: Sequence[RangeSum]) -> bytes:
    """Canonical bytes of the list that a commit with sums names: the entries, and in the order of
    the results those that are silent.
    """
    rows = [(e.author, e.digest, e.payload_bytes, e.weight, e.samples) for e in entries]
    return packed((rows, [result.silent for result in results]))


def with_author_list(commit: Commit, blob: bytes) -> Commit:
    """A commit with sums, and the entries of the list that it names; `RemoteProtocolError` for
    another list, or one out of bounds.
    """
    sums = commit.sums
    if sums is None or sha256(blob) != sums.author_list:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected the list of authors that it names, got "
            f"{sha256(blob).hex()[:16]}"
        )
    plain = unpacked(blob, text_bytes_max=_TEXT_BYTES_MAX, items_max=MEMBERS_MAX)
    listed = converted(plain, _AuthorList)
    counts = len(listed.entries), len(listed.silent)
    if counts != (sums.authors.count, len(sums.results)):
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected a list of {sums.authors.count} authors and "
            f"{len(sums.results)} results, got {counts[0]} and {counts[1]}"
        )
    pairs = zip(sums.results, listed.silent, strict=True)
    results = tuple(replace(result, silent=places) for result, places in pairs)
    entries = tuple(Entry(*row) for row in listed.entries)
    if author_list_bytes(entries, results) != blob:
        raise RemoteProtocolError(
            "expected a list of authors in canonical encoding, got another encoding of it"
        )
    told = replace(sums, results=results)
    found = replace(commit, entries=entries, sums=told)
    _check_entries(found)
    require_silent(told, commit.round)
    return found


def commit_digest(commit: Commit) -> Digest:
    """The commit's name in the chain."""
    return sha256(commit_bytes(commit))


def sign_commit(commit: Commit, key: Ed25519PrivateKey) -> SignedCommit:
    """The commit under the coordinator's signature; the same commit always gives the same
    signature.
    """
    body = commit_bytes(commit)
    place = commit.run_id, commit.round, commit.step
    listed = author_list_bytes(commit.entries, commit.sums.results) if commit.sums else b""
    return SignedCommit(body, key.sign(signed_bytes(*place, sha256(body))), listed)


def signed_bytes(run_id: RunId, round: int, step: int, digest: Digest) -> bytes:
    """The bytes that a coordinator signs for a commit."""
    return _DOMAIN + packed((run_id, round, step, digest))


def require_signed(what: str, signed: bytes, signature: bytes, coordinator_key: bytes) -> None:
    """Raise `RemoteProtocolError`, which calls the bytes `what`, unless the key signed them."""
    try:
        Ed25519PublicKey.from_public_bytes(coordinator_key).verify(signature, signed)
    except (InvalidSignature, ValueError):  # ValueError: the key has another length
        raise RemoteProtocolError(
            f"expected {what} signed by this run's coordinator, got another signature"
        ) from None


def open_commit(signed: SignedCommit, coordinator_key: bytes) -> Commit:
    """The commit inside, after its encoding, signature and bounds were checked. In a round with
    sums it has entries if the list of authors is there.

    Raises `RemoteProtocolError` for anything that the coordinator with this key did not sign or
    that is not canonical.
    """
    try:
        plain = unpacked(signed.body, text_bytes_max=_TEXT_BYTES_MAX, items_max=MEMBERS_MAX)
        commit = converted(plain, Commit)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"expected a commit, got bytes that do not decode: {error}"
        ) from None
    if commit_bytes(commit) != signed.body:
        raise RemoteProtocolError(
            "expected a commit in canonical encoding, got another encoding of it"
        )
    place = commit.run_id, commit.round, commit.step
    content = signed_bytes(*place, sha256(signed.body))
    require_signed("a commit", content, signed.signature, coordinator_key)
    _check(commit)
    return with_author_list(commit, signed.author_list) if signed.author_list else commit


def check_link(commit: Commit, run_id: RunId, previous: Digest, previous_round: int) -> None:
    """Raise `RemoteProtocolError` unless `commit` follows the commit with digest `previous`."""
    if commit.run_id != run_id:
        raise RemoteProtocolError(
            f"expected a commit of run {run_id}, got one of run {commit.run_id}"
        )
    if commit.previous != previous:
        raise RemoteProtocolError(
            f"commit of round {commit.round} does not follow the one before it: expected previous "
            f"{previous.hex()[:16]}, got {commit.previous.hex()[:16]}"
        )
    if commit.round <= previous_round:
        raise RemoteProtocolError(
            f"expected a commit after round {previous_round}, got round {commit.round}"
        )


def _check(commit: Commit) -> None:
    if commit.sums is None:
        _check_entries(commit)
        _check_mix(commit)
    elif commit.mix is None:
        require_sums(commit.sums, commit.round)
    else:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected no mix beside sums, got both"
        )
    parse_digest(commit.previous)
    if (least := min(commit.round, commit.step, commit.learning_rate_bits, commit.decay_bits)) < 0:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected no negative field, got {least}"
        )
    if (most := max(commit.learning_rate_bits, commit.decay_bits)) >= 2**32:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected float32 bits below 2**32, got {most}"
        )


def _check_entries(commit: Commit) -> None:
    authors = [parse_peer_id(entry.author) for entry in commit.entries]
    if authors != sorted(set(authors)):
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected authors sorted and once each"
        )
    if not 1 <= len(authors) <= MEMBERS_MAX:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected 1..{MEMBERS_MAX} entries, got {len(authors)}"
        )
    for entry in commit.entries:
        parse_digest(entry.digest)
        if (
            not 1 <= entry.payload_bytes <= PAYLOAD_BYTES_LIMIT
            or not 1 <= entry.weight <= VOTE_SUM_MAX
        ):
            raise RemoteProtocolError(
                f"commit of round {commit.round}: size or weight of {entry.author}: expected "
                f"1..{PAYLOAD_BYTES_LIMIT} "
                f"and 1..{VOTE_SUM_MAX}, got {entry.payload_bytes} and {entry.weight}"
            )
    if (weights := sum(entry.weight for entry in commit.entries)) > VOTE_SUM_MAX:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected weights of {VOTE_SUM_MAX} together at most, "
            f"got {weights}"
        )


def _check_mix(commit: Commit) -> None:
    """`RemoteProtocolError` unless the shares are those of a doubly stochastic matrix."""
    edges = commit.mix.edges if commit.mix else ()
    if commit.mix and commit.mix.mean and edges:
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected no edges beside a mean, got {len(edges)}"
        )
    degree = [0] * len(commit.entries)
    for first, second, _ in edges:
        if not 0 <= first < second < len(commit.entries):
            raise RemoteProtocolError(
                f"commit of round {commit.round}: expected edges between {len(commit.entries)} "
                f"entries, the first of two first, got {first}-{second}"
            )
        degree[first] += 1
        degree[second] += 1
    pairs = [(first, second) for first, second, _ in edges]
    if pairs != sorted(set(pairs)):
        raise RemoteProtocolError(
            f"commit of round {commit.round}: expected edges sorted and once each"
        )
    for first, second, divisor in edges:
        if not max(degree[first], degree[second]) < divisor <= MEMBERS_MAX:
            raise RemoteProtocolError(
                f"commit of round {commit.round}: expected a divisor above the number of edges of "
                f"either end and at most {MEMBERS_MAX}, got {divisor} for {first}-{second}"
            )
