"""The payload container: any coefficients come back, and no bytes are read that `encode` would not
write.
"""

import struct
import tracemalloc
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.codec.bits import gaps_of, pack, pack_unary, rice_parameter
from protocol.codec.payload import (
    ROUND_MAX,
    Coefficients,
    Header,
    PayloadShape,
    bits_per_value,
    decode,
    encode,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError, SettingsError
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNKS_MAX

bounded = settings(max_examples=150)

HEADER = Header(RunId("ab" * 16), 7, PeerId("01" * 16))
SMALL = PayloadShape(chunks=2, top_k=2, value_bits=1)

ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
headers = st.builds(Header, ids, st.integers(0, ROUND_MAX), ids)
value_widths = st.sampled_from([1, 2, 4, 8])


def coefficients_of(sets: list[list[int]], values: list[int]) -> Coefficients:
    return Coefficients(
        np.array([len(chosen) for chosen in sets], np.uint16),
        np.array([index for chosen in sets for index in chosen], np.uint16),
        np.array(values, np.int16),
    )


def random_coefficients(shape: PayloadShape, counts: np.ndarray, seed: int) -> Coefficients:
    """Uniformly drawn sets of `counts` indices, and uniform values."""
    generator = np.random.default_rng(seed)
    order = [np.sort(generator.permutation(4096)[:count]) for count in counts]
    indices = np.concatenate(order).astype(np.uint16)
    magnitudes = generator.integers(1, shape.value_max, indices.size, endpoint=True)
    values = magnitudes * generator.choice([-1, 1], indices.size)
    return Coefficients(counts.astype(np.uint16), indices, values.astype(np.int16))


def full_coefficients(shape: PayloadShape, seed: int) -> Coefficients:
    return random_coefficients(shape, np.full(shape.chunks, shape.top_k), seed)


def small_container() -> bytes:
    """Indices 3 and 1000 with +1 and -1 in a full chunk, 4095 with -1 in a short one."""
    return encode(HEADER, coefficients_of([[3, 1000], [4095]], [1, -1, -1]), SMALL)


def with_header(fields: list[object], body: bytes) -> bytes:
    packed = msgpack.packb(fields)
    return struct.pack("<4sH", b"LSP1", len(packed)) + packed + body


def head_fields(shape: PayloadShape, short_chunks: int) -> list[object]:
    author, run_id = bytes.fromhex(HEADER.author), bytes.fromhex(HEADER.run_id)
    return [
        1,
        run_id,
        HEADER.round,
        author,
        shape.chunks,
        shape.top_k,
        shape.value_bits,
        short_chunks,
    ]


def assert_same(found: Coefficients, expected: Coefficients) -> None:
    for name in ("counts", "indices", "values"):
        array = getattr(found, name)
        assert array.dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(array, getattr(expected, name), err_msg=name)


def is_accepted(container: bytes, shape: PayloadShape) -> bool:
    """Whether it decodes; if it does, it must be what its own contents encode to."""
    try:
        header, coefficients = decode(container, shape)
    except RemoteProtocolError:
        return False
    assert encode(header, coefficients, shape) == container
    return True


def test_the_layout_of_a_small_container() -> None:
    parts = (
        "4c535031 2b00",  # LSP1, 43 bytes of header
        "98 01 c410" + "ab" * 16 + "07 c410" + "01" * 16 + "02 02 01 01",
        "02 01",  # the second chunk is short and has one coefficient
        # remainders 3, 996, 1023 of the gaps 3, 996, 4095: ten rows of three bits
        "05050604040606060606",
        "23",  # quotients 0, 0, 3
        "06",  # signs + - -
    )
    assert small_container() == bytes.fromhex("".join(parts))


@bounded
@given(
    headers,
    st.lists(st.sets(st.integers(0, 4095), max_size=9), min_size=1, max_size=9),
    value_widths,
    st.data(),
)
def test_any_sets_of_indices_come_back(
    header: Header, sets: list[set[int]], value_bits: int, data: st.DataObject
) -> None:
    most = max(1, *map(len, sets))
    shape = PayloadShape(len(sets), data.draw(st.integers(most, most + 3)), value_bits)
    nonzero = st.integers(-shape.value_max, shape.value_max).filter(bool)
    count = sum(map(len, sets))
    values = data.draw(st.lists(nonzero, min_size=count, max_size=count))
    sent = coefficients_of([sorted(chosen) for chosen in sets], values)
    container = encode(header, sent, shape)
    assert len(container) <= shape.bytes_max
    received_header, received = decode(container, shape)
    assert received_header == header
    assert_same(received, sent)


@bounded
@given(
    st.integers(1, 4096), st.integers(1, 20), value_widths, st.integers(0, 2**32), st.floats(0, 1)
)
@example(4096, 3, 8, 0, 1.0)
@example(4096, 9, 1, 0, 0.0)
@example(1, 20, 1, 0, 0.5)
def test_any_top_k_comes_back_with_any_part_of_its_chunks_short(
    top_k: int, chunks: int, value_bits: int, seed: int, full: float
) -> None:
    shape = PayloadShape(chunks, top_k, value_bits)
    generator = np.random.default_rng(seed)
    counts = np.where(generator.random(chunks) < full, top_k, generator.integers(0, top_k, chunks))
    sent = random_coefficients(shape, counts, seed)
    container = encode(HEADER, sent, shape)
    assert len(container) <= shape.bytes_max
    assert_same(decode(memoryview(container), shape)[1], sent)


@pytest.mark.parametrize("value_bits", [1, 2, 4, 8])
def test_a_payload_without_coefficients_comes_back(value_bits: int) -> None:
    shape = PayloadShape(11, 32, value_bits)
    container = encode(HEADER, coefficients_of([[]] * 11, []), shape)
    assert bits_per_value(len(container), 0) == 0.0
    assert_same(decode(container, shape)[1], coefficients_of([[]] * 11, []))
    assert is_accepted(container, shape)
    assert not is_accepted(container + b"\0", shape)


@pytest.mark.parametrize("value_bits", [1, 2, 4, 8])
def test_every_value_of_a_width_comes_back(value_bits: int) -> None:
    most = 2 ** (value_bits - 1)
    values = [value for value in range(-most, most + 1) if value]
    shape = PayloadShape(1, 2 * most, value_bits)
    sent = coefficients_of([list(range(2 * most))], values)
    assert_same(decode(encode(HEADER, sent, shape), shape)[1], sent)


@pytest.mark.parametrize(("top_k", "table"), [(4, 11.14), (8, 10.32), (32, 8.47), (64, 7.50)])
def test_bits_per_index_are_those_of_the_design(top_k: int, table: float) -> None:
    sent = full_coefficients(PayloadShape(2000, top_k, 1), seed=top_k)
    gaps, parameter = gaps_of(sent.indices, sent.counts), rice_parameter(top_k)
    planes = pack(gaps & (2**parameter - 1), parameter), pack_unary(gaps >> parameter)
    assert bits_per_value(sum(plane.size for plane in planes), gaps.size) == pytest.approx(
        table, abs=0.03
    )


@pytest.mark.parametrize(("top_k", "most"), [(32, 9.6), (8, 11.5)])
def test_bits_per_sign_of_ten_million_parameters(top_k: int, most: float) -> None:
    shape = PayloadShape(2442, top_k, 1)
    container = encode(HEADER, full_coefficients(shape, seed=1), shape)
    assert most - 0.3 < bits_per_value(len(container), 2442 * top_k) <= most


@pytest.mark.parametrize("top_k", [1, 2, 3, 8, 32, 64, 1000, 2048, 4095, 4096])
@pytest.mark.parametrize("value_bits", [1, 8])
def test_the_largest_payload_fits_bytes_max_and_comes_near(top_k: int, value_bits: int) -> None:
    shape = PayloadShape(40, top_k, value_bits)
    header = replace(HEADER, round=ROUND_MAX)
    sizes = []
    for short_chunks in (0, 1, 8, 40):
        counts = [top_k - (chunk < short_chunks) for chunk in range(40)]
        sets = [list(range(4096 - count, 4096)) for count in counts]
        sizes.append(len(encode(header, coefficients_of(sets, [1] * sum(counts)), shape)))
    assert shape.bytes_max - 64 <= max(sizes) <= shape.bytes_max


def test_every_single_mutation_is_refused_or_is_another_payload() -> None:
    container = small_container()
    flips = [
        container[:place] + bytes([container[place] ^ 1 << bit]) + container[place + 1 :]
        for place in range(len(container))
        for bit in range(8)
    ]
    inserts = [
        container[:place] + bytes([byte]) + container[place:]
        for place in range(len(container) + 1)
        for byte in (0, 1, 2, 4, 0x7F, 0x80, 0xC4, 0xFF)
    ]
    deletes = [container[:place] + container[place + 1 :] for place in range(len(container))]
    assert {is_accepted(mutation, SMALL) for mutation in flips} == {True, False}
    assert not any(is_accepted(container[:end], SMALL) for end in range(len(container)))
    for mutation in inserts + deletes:
        is_accepted(mutation, SMALL)


@settings(max_examples=400)
@given(st.integers(1, 40), st.integers(1, 12), value_widths, st.integers(0, 2**32), st.data())
def test_a_mutated_container_is_refused_or_is_another_payload(
    top_k: int, chunks: int, value_bits: int, seed: int, data: st.DataObject
) -> None:
    shape = PayloadShape(chunks, top_k, value_bits)
    generator = np.random.default_rng(seed)
    short = generator.random(chunks) < data.draw(st.sampled_from([0.0, 0.3]))
    counts = np.where(short, generator.integers(0, top_k, chunks), top_k)
    container = encode(HEADER, random_coefficients(shape, counts, seed), shape)
    start = data.draw(st.integers(0, len(container)))
    stop = data.draw(st.integers(start, min(len(container), start + 2)))
    is_accepted(container[:start] + data.draw(st.binary(max_size=3)) + container[stop:], shape)


@settings(max_examples=400)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5), st.binary(max_size=40))
def test_any_planes_are_refused_or_are_a_payload(
    chunks: int, top_k: int, short: int, body: bytes
) -> None:
    shape = PayloadShape(chunks, top_k, 1)
    is_accepted(with_header(head_fields(shape, short), body), shape)


@bounded
@given(st.binary(max_size=100))
def test_any_header_is_refused_or_is_a_payload(header: bytes) -> None:
    is_accepted(struct.pack("<4sH", b"LSP1", len(header)) + header + small_container()[-14:], SMALL)


def test_a_deeply_nested_header_is_refused() -> None:
    nested = b"\x91" * 250
    assert not is_accepted(struct.pack("<4sH", b"LSP1", 250) + nested, PayloadShape(1000, 4, 1))


def test_a_header_longer_than_its_limit_is_not_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match="header of at most 256 bytes, got 257"):
        decode(struct.pack("<4sH", b"LSP1", 257) + bytes(300), PayloadShape(1000, 4, 1))


@pytest.mark.parametrize("field", range(8))
@pytest.mark.parametrize("wrong", [None, True, "1", -1, 2**63, 1.0, b"short", [], {"a": 1}])
def test_a_header_field_of_the_wrong_kind_is_refused(field: int, wrong: object) -> None:
    fields = head_fields(SMALL, 1)
    fields[field] = wrong
    assert not is_accepted(with_header(fields, small_container()[-14:]), SMALL)


def test_another_version_names_both_even_if_its_header_is_unlike_ours() -> None:
    with pytest.raises(RemoteProtocolError, match="version 1, got version 2"):
        decode(with_header([2, "something", {"else": 1}], b""), SMALL)


def test_a_number_in_a_longer_msgpack_form_is_refused() -> None:
    container = small_container()
    packed = container[6:49].replace(b"\x07\xc4", b"\xcc\x07\xc4")
    assert msgpack.unpackb(packed) == head_fields(SMALL, 1)
    with pytest.raises(RemoteProtocolError, match="shortest msgpack header"):
        decode(struct.pack("<4sH", b"LSP1", len(packed)) + packed + container[49:], SMALL)


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_payload_of_another_shape_names_both(chunks: int) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"of \({chunks}, 2, 1\), got \(2, 2, 1\)"):
        decode(small_container(), replace(SMALL, chunks=chunks))


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        (b"", "at least 6 bytes, got 0"),
        (b"LSP1\0", "at least 6 bytes, got 5"),
        (b"LSP2\0\0", "starts with b'LSP1', got b'LSP2'"),
        (b"LSP1\xff\xff" + bytes(50), "header of at most 50 bytes, got 65535"),
        (b"LSP1\0\0", "expected a payload header, got : "),
        (bytes(500), "at most 78 bytes, got 500"),
    ],
)
def test_bytes_that_are_no_payload_say_why(container: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        decode(container, SMALL)


@pytest.mark.parametrize(
    ("top_k", "short_chunks", "body", "reason"),
    [
        (2, 3, "", "0 to 2 short chunks, got 3"),
        (2, 1, "02", "2 bytes that count short chunks, got 1"),
        (2, 1, "03 01 05050604040606060606 23 06", "1 short chunks in the bitmap, got 2"),
        (2, 1, "00 01 05050604040606060606 23 06", "1 short chunks in the bitmap, got 0"),
        (2, 1, "06 01 05050604040606060606 23 06", "zero padding after 2 bits"),
        (2, 1, "02 03 05050604040606060606 23 06", "zero padding after 1 bits"),
        (3, 1, "02 0101 000000000000000000 1f 00", "fewer than 3 coefficients, got 3"),
        (2, 1, "02 01 05050604040606060606 23", "3 coefficients, got only 11"),
        (2, 1, "02 01 0d050604040606060606 23 06", "zero padding after 3 bits"),
        (2, 1, "02 01 05050604040606060606 2300 06", "unary plane of 1 bytes, got 2"),
        (2, 1, "02 01 05050604040606060606 23 0e", "zero padding after 3 bits"),
        (2, 1, "02 01 05050604040606060606 43 06", "quotients of at most 3, got 4"),
        (2, 1, "02 01 05050604040606060606 8808 06", "expected indices up to 4095"),
    ],
)
def test_planes_that_are_not_canonical_say_why(
    top_k: int, short_chunks: int, body: str, reason: str
) -> None:
    shape = replace(SMALL, top_k=top_k)
    with pytest.raises(RemoteProtocolError, match=reason):
        decode(with_header(head_fields(shape, short_chunks), bytes.fromhex(body)), shape)


LARGE = PayloadShape(chunks=20_000, top_k=32, value_bits=1)


def peak_of_refusal(container: bytes) -> int:
    """Bytes that decoding takes at most before it refuses the container."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode(container, LARGE)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("short_chunks", [0, 1, 20_000])
def test_a_header_that_lies_about_its_planes_takes_memory_for_the_counts_at_most(
    short_chunks: int,
) -> None:
    lie = with_header(head_fields(LARGE, short_chunks), b"")
    assert peak_of_refusal(lie) < 2 * LARGE.chunks + 128 * 1024


@pytest.mark.parametrize("short_chunks", [0, 20_000])
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x55, 0xFF])
def test_hostile_planes_take_no_more_than_four_times_the_honest_coefficients(
    short_chunks: int, byte: int
) -> None:
    lie = with_header(head_fields(LARGE, short_chunks), bytes([byte]) * (LARGE.bytes_max - 64))
    assert peak_of_refusal(lie) < 4 * (2 + 2) * LARGE.chunks * LARGE.top_k


def test_an_honest_payload_takes_no_more_than_four_times_its_coefficients() -> None:
    shape = replace(LARGE, chunks=5000)
    container = encode(HEADER, full_coefficients(shape, seed=3), shape)
    tracemalloc.start()
    try:
        received = decode(container, shape)[1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert received.indices.size == 5000 * 32
    assert peak < 4 * (2 + 2) * received.indices.size + 3_000_000


@pytest.mark.parametrize(
    ("sets", "values", "reason"),
    [
        ([[1]], [1], "2 counts and 1 indices and values"),
        ([[1], [2]], [1], "2 counts and 2 indices and values"),
        ([[1, 2, 3], []], [1, 1, 1], "at most 2 coefficients in a chunk, got 3"),
        ([[2, 1], []], [1, 1], "ascend within a chunk, got 2 then 1"),
        ([[1, 1], []], [1, 1], "ascend within a chunk, got 1 then 1"),
        ([[1], [4096]], [1, 1], "indices up to 4095, got 4096"),
        ([[1], [2]], [1, 0], "magnitude 1 to 1, got 0 to 1, or a zero"),
        ([[1], [2]], [1, 2], "magnitude 1 to 1, got 1 to 2"),
        ([[1], [2]], [-2, 1], "magnitude 1 to 1, got -2 to 1"),
        ([[1], [2]], [-32768, 1], "magnitude 1 to 1, got -32768 to 1"),
    ],
)
def test_coefficients_that_cannot_be_sent_are_our_error(
    sets: list[list[int]], values: list[int], reason: str
) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        encode(HEADER, coefficients_of(sets, values), SMALL)


def test_coefficients_of_another_type_are_our_error() -> None:
    good = coefficients_of([[1], [2]], [1, 1])
    with pytest.raises(
        LocalProtocolError, match=r"expected .* of uint16, uint16, int16, got .*int64"
    ):
        encode(HEADER, replace(good, indices=good.indices.astype(np.int64)), SMALL)


@pytest.mark.parametrize(
    ("run_id", "number", "author"),
    [
        ("AB" * 16, 0, "01" * 16),
        ("ab" * 16, 0, "01" * 15),
        ("ab" * 16, -1, "01" * 16),
        ("", 0, "01" * 16),
    ],
)
def test_a_header_that_cannot_be_sent_is_our_error(run_id: str, number: int, author: str) -> None:
    with pytest.raises(LocalProtocolError, match="expected"):
        Header(RunId(run_id), number, PeerId(author))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((0, 1, 1), f"1 to {CHUNKS_MAX} chunks, got 0"),
        ((CHUNKS_MAX + 1, 1, 1), f"1 to {CHUNKS_MAX} chunks"),
        ((1, 0, 1), "top_k of 1 to 4096, got 0"),
        ((1, 4097, 1), "top_k of 1 to 4096, got 4097"),
        ((1, 1, 3), "value_bits of .* got 3"),
        ((CHUNKS_MAX, 4096, 8), "payloads of at most 2147483648 bytes"),
    ],
)
def test_a_shape_outside_its_bounds_says_which(fields: tuple[int, int, int], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        PayloadShape(*fields)
