"""Standing: what a key has earned or was given. In a run that is open to the public only standing
decides: keys are free, so a decision by their number would belong to the party that makes most.

    fresh ------------------------> counted
      |    COUNTED_ROUNDS payloads     |
      '---------> vouched <------------'
                   the operator's word

    fresh, counted, vouched --an auditor's evidence--> demoted --the operator vouches--> vouched

Standing belongs to the key, outlives its sessions and is part of the run's state. A fresh key works
and its payloads are applied, in bounded number (`coordinator.machine.rules.opening`); nobody waits
for it, and it gives no receipt, no vote on a state, no quorum and no pace. A demoted key, in a run
among known people too, is given no work at all (`coordinator.machine.rules.demotion`).

A payload is committed only when half of its witnesses hold it, decoded and with the right header.
They are drawn among the assigned members with standing by a hash that contains a secret of the
coordinator's: nobody can make payloads until its friends are drawn. A third of the members, of whom
the author is one, are less than half of its witnesses; and if they hold their receipts back, the
honest ones are half of them still, of three members too.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import Digest, PeerId

COUNTED_ROUNDS = 50
"""Committed payloads of its own after which a key is counted. Each is a round of real work that
half of its witnesses have decoded, and at most one fresh payload in three is taken: ten keys with
standing cost an attacker at least five hundred payloads in the places of honest newcomers."""

KEYS_MAX = 4096
"""Keys whose payloads are remembered, as many as a run may have members."""

WITNESSES = 9
"""Witnesses drawn for a payload; half of them must hold it. Of members of which a quarter lie, five
of nine are liars in 5 of 100 draws; more witnesses would wait for slower members."""

SALT_BYTES = 32
"""Length of the secret that draws witnesses."""

PARTS = 1_000_000
"""Parts of a round in which tardiness is counted: the time in which most members are there."""

TARDY, TARDY_MAX = 2 * PARTS, 4 * PARTS
"""Tardiness beyond which no round waits for a key, and that which it has then. One mishap, however
long, is no more than the first."""

FORGIVEN_ROUNDS = 3
"""Punctual rounds of a member, times the number of all, that make up for a whole round of waiting:
members that use this up cost the others a ninth of the time, if they are a third."""

Word = Literal["fresh", "counted", "vouched"]

RANKS: dict[Word, int] = {"fresh": 0, "counted": 1, "vouched": 2}
"""Order of the words: a key is not blamed on the word of lower ones alone."""

AUDITOR_RANK = 3
"""Rank of an auditor's word: above all others."""


@dataclass(frozen=True, slots=True)
class Demoted:
    """Why a key has lost its standing."""

    auditor: PeerId
    reason: str
    """The evidence in words."""
    evidence: bytes
    """Its canonical bytes; see `protocol.codec.evidence`, of a wrong sum `protocol.sums.signed`."""
    public_key: bytes = b""
    """The auditor's, which has signed evidence against an author; none for a wrong sum, which the
    summer has signed."""

    @property
    def of_sum(self) -> bool:
        """Whether it is about a wrong sum."""
        return not self.public_key


@dataclass(slots=True)
class Standing:
    """The standing of all keys of a run, and the secret that draws witnesses."""

    vouched: set[PeerId] = field(default_factory=set)
    payloads: dict[PeerId, int] = field(default_factory=dict)
    """Committed payloads by author, up to `COUNTED_ROUNDS`."""
    salt: bytes = b""
    demoted: dict[PeerId, Demoted] = field(default_factory=dict)
    """Keys that have lost their standing by an auditor's evidence, oldest first."""
    restored: dict[PeerId, int] = field(default_factory=dict)
    """Keys that the operator has given their standing back, with the newest round then: evidence of
    rounds up to it counts no more."""
    tardy: dict[PeerId, int] = field(default_factory=dict)
    """Parts of rounds for which keys kept others waiting, without those that are forgiven."""

    def word(self, peer: PeerId) -> Word:
        """The standing of a key."""
        if peer in self.demoted:
            return "fresh"
        if peer in self.vouched:
            return "vouched"
        return "counted" if self.payloads.get(peer, 0) >= COUNTED_ROUNDS else "fresh"

    def has(self, peer: PeerId) -> bool:
        """Whether the key is counted or vouched."""
        return self.word(peer) != "fresh"

    def are_most_of_vouched(self, peers: Iterable[PeerId]) -> bool:
        """Whether these are more than half of the keys that the operator vouched for, members or
        not; yes where it vouched for none.
        """
        return not self.vouched or 2 * len(self.vouched.intersection(peers)) > len(self.vouched)

    def demote(self, peer: PeerId, demoted: Demoted) -> None:
        """The key has no standing any more. Beyond `KEYS_MAX` the oldest is forgotten."""
        self.payloads.pop(peer, None)
        self.demoted[peer] = demoted
        if len(self.demoted) > KEYS_MAX:
            del self.demoted[next(iter(self.demoted))]

    def restore(self, peer: PeerId, round: int) -> None:
        """The operator lets a demoted key decide again, after a round; nothing for another one."""
        if self.demoted.pop(peer, None):
            self.restored.pop(peer, None)
            self.restored[peer] = round
            if len(self.restored) > KEYS_MAX:
                del self.restored[next(iter(self.restored))]

    def credit(self, author: PeerId) -> None:
        """A payload of this author was committed. Beyond `KEYS_MAX` the oldest fresh key is
        forgotten; when there is none, the author is. A demoted key earns nothing.
        """
        if author in self.demoted:
            return
        if author not in self.payloads and len(self.payloads) >= KEYS_MAX:
            oldest = next((peer for peer in self.payloads if not self.has(peer)), None)
            if oldest is None:
                return
            del self.payloads[oldest]
        self.payloads[author] = min(COUNTED_ROUNDS, self.payloads.get(author, 0) + 1)

    def note_pace(self, peer: PeerId, late: int, members: int) -> None:
        """The key kept a round of this many members waiting for these parts of one; 0 forgives."""
        old = self.tardy.pop(peer, 0)
        new = old + late if late else old - PARTS // (FORGIVEN_ROUNDS * members)
        if late and old and new > TARDY:
            new = TARDY_MAX
        if new > 0:
            self.tardy[peer] = min(new, TARDY_MAX if old else TARDY)

    def is_tardy(self, peer: PeerId) -> bool:
        """Whether no round waits for the key any more."""
        return self.tardy.get(peer, 0) > TARDY

    def drawn_first(self, round: int, peers: Iterable[PeerId], about: bytes = b"") -> list[PeerId]:
        """The peers in the order in which they are drawn in a round, for the purpose `about`."""

        def place(peer: PeerId) -> bytes:
            return hashlib.sha256(
                b"%b:%d:%b:%b" % (self.salt, round, about, peer.encode())
            ).digest()

        return sorted(peers, key=place)

    def witnesses(self, round: int, digest: Digest, peers: Iterable[PeerId]) -> frozenset[PeerId]:
        """The witnesses of a payload among these peers."""
        return frozenset(self.drawn_first(round, peers, digest)[:WITNESSES])


def half(witnesses: int) -> int:
    """The number of witnesses that must hold a payload."""
    return -(-witnesses // 2)
