"""Named limits on everything that a peer or a slow disk can grow, each with its reason."""

PROTOCOL_VERSION = 1
"""Version of `lockstep.v1`: of the messages, the payload container, the commits and the
arithmetic."""

CHUNK_SIDE = 64
"""Side of a chunk: the DCT's length, for which the exact bounds of the arithmetic are proven."""

CHUNK_ENTRIES = CHUNK_SIDE * CHUNK_SIDE
"""Coefficients in a chunk: 4096, so that an index fits 12 bits."""

VOTE_SUM_MAX = 2**24 - 1
"""Largest |sum of weight * value| on one coefficient: float32 holds every integer up to here
exactly."""

WEIGHTS_MAX = 512
"""Sum of the weights of movements before each is made at least 1: 73 authors still have all 12 bits
of `protocol.sums.movements.RANGE_BITS`, and 4096 have 9."""

GAIN_PARTS = 16
"""Parts of one in which a gain of movements is told: every replica divides the same number."""

GAIN_MAX = 64
"""Largest gain of movements: the root of as many authors as a run has members at most."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Cap of one gRPC message in both directions: gRPC's own default, equal everywhere."""

PART_BYTES = 256 * 1024
"""Bytes in one part of a payload or snapshot: large enough for speed, small enough to share an
uplink."""

MEMBERS_MAX = 4096
"""Members of a run at most; their list is told in pages."""

CONNECTIONS_MAX = 16_384
"""Connections that others may open to one process: four for each member of the largest run. An idle
one holds 10 kB."""

ADDRESSES_MAX = 8
"""Addresses that one node may announce."""

TEXT_BYTES_MAX = 256
"""Length of a name, an address or a reason on the wire."""

TOKEN_BYTES_MAX = 64
"""Length of a token that admits a node: one of 24 random bytes has 32 characters."""

OFFERS_MAX = 512
"""Offers in one message: some 160 bytes each, with the author's signature."""

COMMITS_PER_REPLY = 64
"""Commits in one reply to a node that catches up; it asks again for more."""

RUN_FILE_BYTES_MAX = 256 * 1024
"""A run file is read by people; anything longer is not one."""

TOKENIZER_BYTES_MAX = 32 * 1024**2
"""Length of a tokenizer.json: the largest published ones, of a quarter of a million tokens, have 20
MB without spaces. Its parser takes 32 bytes for each byte of nonsense."""

PAYLOAD_HEADER_BYTES_MAX = 256
"""The msgpack header of a payload: eight small fields."""

PAYLOAD_BYTES_LIMIT = 2 * 1024**3
"""Payload size no run file can exceed: a coefficient count that still fits 32-bit offsets."""

CHUNKS_MAX = 2**26
"""Chunks of a model at most (2.7e11 parameters)."""

VALIDATION_WINDOWS_MAX = 64
"""Held-out samples of one measurement of the loss: some thousand tokens, whose order of losses a
person can trust."""

VALIDATION_TOKENS = 16_384
"""Tokens of these samples at most, so that a measurement of long samples costs no more."""

LOSS_NATS_MAX = 10_000.0
"""Largest loss that a member may state, in nats per token; that of a network which knows nothing of
2**22 tokens is 15. A larger one of its training, which diverges, is taken as this."""
