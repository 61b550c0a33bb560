"""gRPC options that both ends of every channel use, so that limits agree.

A server that sees more keepalive pings than it allows closes the connection ("too many pings"): the
most common complaint about gRPC over home links. So the interval of the client and the least
interval that the server allows stand side by side here. Ten seconds also keeps the shortest NAT
mappings of home routers alive.
"""

from protocol.limits import MESSAGE_BYTES_MAX

KEEPALIVE_MS = 10_000
"""A ping on a channel that has been silent for this long."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""A channel whose ping is not answered for this long is dead."""

STREAMS_PER_CONNECTION_MAX = 8
"""Sessions and calls at once over one connection: a node has one session and a few calls, and each
may hold a message that is not whole."""

UNUSED_MS = 20_000
"""Time after which a server closes a connection without a call: it holds a descriptor for
nothing."""

HANDSHAKE_MS = 5_000
"""Time within which a client must have said that it speaks HTTP/2."""

_BOTH: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 4),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.max_connection_idle_ms", UNUSED_MS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
)
