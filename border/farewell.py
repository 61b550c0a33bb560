"""The last words of a gate to a connection that it does not let in, or that makes room before gRPC
has said anything: one line at the other end, which else sees no more than a closed connection.
"""

CROWDED_ALERT = "TLSV1_ALERT_INTERNAL_ERROR"
"""The reason of OpenSSL's error at a client that hears `ALERT`."""

ALERT = bytes.fromhex("15 0303 0002 02 50")
"""A record of TLS from before a handshake: a fatal alert of a lack at this end (RFC 8446, 6.2)."""

CROWDED = "this port is crowded, and makes room for others; try again in some seconds"

_SETTINGS, _GOAWAY, _CALM = 4, 7, 11
"""Types of HTTP/2's frames, and the code of "enhance your calm" (RFC 9113)."""


def goaway() -> bytes:
    """The words without TLS: HTTP/2 that goes away before the first stream."""
    said = bytes(4) + _CALM.to_bytes(4, "big") + CROWDED.encode()
    return _frame(_SETTINGS, b"") + _frame(_GOAWAY, said)


def _frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind]) + bytes(5) + payload
