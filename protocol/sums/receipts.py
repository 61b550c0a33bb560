"""The name of a payload in the receipts of summers.

Each of the 2n tasks of a round names each payload once, so that a name is eight bytes: the first of
a digest of author and root. The coordinator knows both of every payload that was announced, and so
the names. One that fits none of them says nothing. A summer reads the author in the headers of the
parts; so who announces the root of another is in no receipt.
"""

from typing import Final

from protocol.ids import Digest, PeerId, sha256

NAME_BYTES: Final = 8
"""Bytes of a name. To make a payload of the name of another takes 2^64 trials, within the moments
from its announcement to the end of its round."""

_DOMAIN: Final = b"lockstep.receipt.v1"


def receipt_name(author: PeerId, root: Digest) -> int:
    """The name of an author's payload."""
    return int.from_bytes(sha256(_DOMAIN + author.encode() + root)[:NAME_BYTES], "big")
