"""The message of a rank in a step that all make: its payloads, or the reason why it has none.

byte 0         0: payloads follow; 1: a sentence follows
bits           for each trained parameter of all groups, whether it has a gradient; whole bytes
8 bytes each   length of each group's payload, little-endian
payloads       of each group, empty for one without a gradient
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from protocol.errors import RemoteProtocolError

_SENT, _FAILED = 0, 1


def encode(present: Sequence[bool], payloads: Sequence[bytes]) -> bytes:
    """The parcel of a rank that makes its step."""
    flags = np.packbits(np.array(present, np.bool_)).tobytes()
    lengths = np.array([len(payload) for payload in payloads], "<u8").tobytes()
    return b"".join([bytes([_SENT]), flags, lengths, *payloads])


def encode_failure(sentence: str) -> bytes:
    """The parcel of a rank that could not make its step after all."""
    return bytes([_FAILED]) + sentence.encode()


def failure(parcel: bytes) -> str:
    """The sentence of a rank that has failed, else an empty one."""
    return parcel[1:].decode(errors="replace") if parcel[:1] == bytes([_FAILED]) else ""


def decode(parcel: bytes, parameters: int, groups: int) -> tuple[list[bool], list[bytes]]:
    """The flags and payloads of a parcel; `RemoteProtocolError` for one of another length."""
    flags_end = 1 + -(-parameters // 8)
    lengths_end = flags_end + 8 * groups
    if len(parcel) < lengths_end:
        raise RemoteProtocolError(
            f"expected at least {lengths_end} bytes of a rank, got {len(parcel)}"
        )
    lengths = np.frombuffer(parcel[flags_end:lengths_end], "<u8").tolist()
    if sum(lengths) != len(parcel) - lengths_end:
        raise RemoteProtocolError(
            f"expected payloads of {sum(lengths)} bytes, got {len(parcel) - lengths_end}"
        )
    bits = np.unpackbits(np.frombuffer(parcel[1:flags_end], np.uint8), count=parameters)
    ends = accumulate(lengths, initial=lengths_end)
    payloads = [parcel[end : end + length] for end, length in zip(ends, lengths, strict=False)]
    return bits.astype(np.bool_).tolist(), payloads
