"""The payload of a run whose nodes mix parameters: all of one node's parameters, as bytes.

    head      payload_header.py: b"LSPH", b"LSPF" or b"LSPD"; who sent it, when, and how many
              numbers follow
    numbers   float16 or float32, little-endian, in the order of the parameters' sorted names; or
              differences.py

All forms are payloads of any round, so a payload is judged without knowing its round's. There is
one encoding of the same numbers in a form: `decode_parameters` takes exactly the bytes that
`encode_parameters` makes.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protocol.codec.differences import Differences, from_bytes, to_bytes
from protocol.codec.payload_header import (
    MAGIC_DIFFERENCES,
    MAGIC_FLOAT,
    MAGIC_HALF,
    Blob,
    Header,
    Sizes,
    head_bytes,
    read_head,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import PAYLOAD_HEADER_BYTES_MAX

Numbers = npt.NDArray[np.float16] | npt.NDArray[np.float32]

Sent = Numbers | Differences
"""The parameters in one payload."""

HALF_MAX: Final = 65504.0
"""Largest float16."""

_FORMS: Final[dict[bytes, np.dtype[Any]]] = {
    MAGIC_HALF: np.dtype("<f2"),
    MAGIC_FLOAT: np.dtype("<f4"),
}


def payload_bytes_max(numbers: int) -> int:
    """Bytes that no payload of this many parameters exceeds."""
    return 6 + PAYLOAD_HEADER_BYTES_MAX + 4 * numbers


def encode_parameters(header: Header, values: Sent) -> bytes:
    """The payload of these parameters, [numbers], in the form of their dtype or as differences.
    `LocalProtocolError` for another dtype.
    """
    if isinstance(values, Differences):
        sizes = _sizes(MAGIC_DIFFERENCES, len(values))
        return head_bytes(header, sizes, 0) + to_bytes(values)
    for magic, form in _FORMS.items():
        if values.dtype == form and values.ndim == 1:
            return head_bytes(header, _sizes(magic, len(values)), 0) + values.tobytes()
    raise LocalProtocolError(
        f"expected float16 or float32 numbers in a row, got {values.dtype} of {values.shape}"
    )


def decode_parameters(payload: Blob, numbers: int) -> tuple[Header, Sent]:
    """The header and the parameters, [numbers], a view of the payload.

    Raises `RemoteProtocolError`, and nothing else, for bytes that are not `numbers` finite
    parameters.
    """
    view = memoryview(payload).cast("B")
    magic = bytes(view[:4])
    form = _FORMS.get(magic)
    if form is None and magic != MAGIC_DIFFERENCES:
        expected = " or ".join(map(repr, (*_FORMS, MAGIC_DIFFERENCES)))
        raise RemoteProtocolError(f"expected a payload that starts with {expected}, got {magic!r}")
    header, short, body = read_head(view, _sizes(magic, numbers))
    if short:
        raise RemoteProtocolError(f"expected no short chunks beside parameters, got {short}")
    if form is None:
        return header, from_bytes(body, numbers)
    if body.nbytes != numbers * form.itemsize:
        raise RemoteProtocolError(
            f"expected {numbers} numbers of {form.itemsize} bytes, got {body.nbytes} bytes"
        )
    values: Numbers = np.frombuffer(body, form)
    if not np.isfinite(values).all():
        raise RemoteProtocolError("expected finite parameters, got others")
    return header, values


def _sizes(magic: bytes, numbers: int) -> Sizes:
    form = _FORMS.get(magic, np.dtype(np.int8))
    return Sizes(magic, numbers, 1, 8 * form.itemsize)
