"""Which rounds an auditor audits: nobody can foretell them, anybody can check them later. Pure.

    the auditor's ed25519 signature over (run, round) --SHA-256--> below a threshold: drawn
             |                                        '----------> the order of the authors
             '-- in the evidence: whoever has it checks that the round was drawn

As RFC 8032 makes it, an ed25519 signature is a function of the key and the message, so an auditor
has one lot for a round; nobody else can make it, so an author learns of an audit from the evidence
at the earliest, when its payload is long committed. A changed auditor can sign a message anew, with
another nonce, until a lot suits it: all of these are valid. So lots bind honest auditors, and blind
authors. Each auditor draws its own rounds. The chance is twice what the auditor's part of the run's
compute pays for, as time forbids some of the rounds that are drawn (`lockstep.audit.work.lottery`).
"""

import hashlib
from collections.abc import Collection
from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta

from protocol.errors import RemoteProtocolError
from protocol.handshake import verify
from protocol.ids import PeerId, RunId

LOT_BYTES: Final = 64
"""Length of a lot, an ed25519 signature."""

_WHOLE: Final = 10_000
"""The share of all."""

CHANCE_MAX: Final = _WHOLE // 2
"""Chance of a round to be drawn, at most: with many authors too, half of all rounds stay out."""

TIMES_PAID: Final = 2
"""Times the chance that the auditor's part of the compute pays for."""

_DOMAIN: Final = b"lockstep.lot.v1"


class Draw(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The lot of a round, and the part of the run's compute for which its auditor draws."""

    lot: Annotated[bytes, Meta(min_length=LOT_BYTES, max_length=LOT_BYTES)]
    share: Annotated[int, Meta(ge=1, le=_WHOLE)]
    """In ten-thousandths."""

    def chance(self, authors: int, *, panel: int) -> int:
        """The chance of a round of these authors to be drawn, in ten-thousandths; `panel` authors
        of it are audited.
        """
        return min(CHANCE_MAX, TIMES_PAID * self.share * authors // panel)

    def is_drawn(self, authors: int, *, panel: int) -> bool:
        """Whether a round of these authors is audited."""
        found = int.from_bytes(hashlib.sha256(self.lot).digest()[:8])
        return found * _WHOLE < self.chance(authors, panel=panel) << 64

    def order(self, authors: Collection[PeerId]) -> list[PeerId]:
        """Authors of the round in the order of their lots."""
        return sorted(authors, key=lambda each: hashlib.sha256(self.lot + each.encode()).digest())


def draw(key: Ed25519PrivateKey, run_id: RunId, round: int, share: int) -> Draw:
    """The draw of an auditor in a round, always the same."""
    return Draw(key.sign(_message(run_id, round)), share)


def is_own(public_key: bytes, run_id: RunId, round: int, lot: bytes) -> bool:
    """Whether a lot is that of the auditor with this raw key, in this round of this run."""
    try:
        verify(public_key, lot, _message(run_id, round))
    except RemoteProtocolError:
        return False
    return True


def _message(run_id: RunId, round: int) -> bytes:
    return b"%b:%b:work:%d" % (_DOMAIN, run_id.encode(), round)
