"""HTTP/2 as bytes: frames, and header blocks of calls."""

OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""What opens HTTP/2: the preface, and settings that change nothing."""

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535

ENTRY_BYTES = 3900
REFERENCES = 12_000
"""Names of the entry in one block, a byte each: 47 MB to whoever writes them out."""

VALUE_BYTES = 4_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def call(path: str) -> bytes:
    """The header block of a call that is no more than one."""
    kind = b"application/grpc"
    return (
        b"\x83\x86\x04" + bytes([len(path)]) + path.encode()  # POST, http, :path
        + b"\x01\x01x\x0f\x10" + bytes([len(kind)]) + kind  # :authority, content-type
        + b"\x00\x02te\x08trailers"
    )  # fmt: skip


def begun(path: str, stream: int) -> bytes:
    """A call without its message."""
    return frame(HEADERS, END_HEADERS, stream, call(path))


def bomb(path: str) -> bytes:
    """A header block for a call: a long entry for the table, then its name again and again."""
    block = call(path) + b"\x40\x01y" + _length(ENTRY_BYTES) + b"v" * ENTRY_BYTES
    return (block + b"\xbe" * REFERENCES)[:FRAME_BYTES]


def long_headers(path: str) -> bytes:
    """A header block for a call, as long as a frame, whose headers go into no table."""
    one = b"\0\1z" + _length(VALUE_BYTES) + b"v" * VALUE_BYTES
    return call(path) + one * ((FRAME_BYTES - 200) // len(one))


def _length(count: int) -> bytes:
    """A length of two bytes more than the first one holds."""
    return b"\x7f" + bytes([(count - 127) & 127 | 128, (count - 127) >> 7])
