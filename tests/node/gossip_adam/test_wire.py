"""Both ends of an edge mix the same difference, whatever rounding did to the messages."""

import pytest
import torch

from node.gossip_adam.wire import BLOCK, WIRE_FORMATS, WireFormat, edge_wire, message_bytes
from protocol.errors import LocalProtocolError, RemoteProtocolError, SettingsError

NUMBERS = 3 * BLOCK + 17


def start() -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


def moved(seed: int, size: float = 0.1) -> torch.Tensor:
    return start() + size * torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_one_end_adds_what_the_other_subtracts(wire: WireFormat) -> None:
    left, right = edge_wire(wire, start()), edge_wire(wire, start())
    for round in range(20):
        first, second = left.send(moved(2 * round)), right.send(moved(2 * round + 1))
        at_left, at_right = left.settle(second.clone()), right.settle(first.clone())
        assert torch.equal(at_left, -at_right)
        assert at_left.any()


@pytest.mark.parametrize(("wire", "error"), [("float32", 1e-6), ("float16", 4e-3), ("int8", 4e-3)])
def test_the_difference_is_the_true_one_but_for_rounding(wire: WireFormat, error: float) -> None:
    left, right = edge_wire(wire, start()), edge_wire(wire, start())
    first, second = moved(1), moved(2)
    message = right.send(second)
    left.send(first)
    torch.testing.assert_close(left.settle(message), second - first, rtol=0, atol=error)


def test_the_error_of_int8_differences_is_sent_later() -> None:
    left, right = edge_wire("int8", start()), edge_wire("int8", start())
    first, second = moved(1, size=1.0), moved(2, size=1.0)  # stand still while messages go on
    errors = []
    for _ in range(4):
        sent, message = left.send(first), right.send(second)
        errors.append(float((left.settle(message) - (second - first)).abs().max()))
        right.settle(sent)
    assert errors[0] > 1e-3
    assert errors[1] < errors[0] / 50
    assert errors[3] < 1e-6


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_an_edge_that_failed_leaves_no_trace(wire: WireFormat) -> None:
    left, right = edge_wire(wire, start()), edge_wire(wire, start())
    left.send(moved(3, size=9.0))  # the edge failed: neither end settles
    right.send(moved(4, size=9.0))
    first, second = left.send(moved(1)), right.send(moved(2))
    assert torch.equal(left.settle(second), -right.settle(first))
    fresh_left, fresh_right = edge_wire(wire, start()), edge_wire(wire, start())
    assert torch.equal(fresh_left.send(moved(1)), first)
    assert torch.equal(fresh_right.send(moved(2)), second)


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_a_message_has_the_bytes_that_are_told(wire: WireFormat) -> None:
    message = edge_wire(wire, start()).send(moved(1))
    assert message.dtype == torch.uint8
    assert message.shape == (message_bytes(wire, NUMBERS),)


def test_int8_takes_half_the_bytes_of_float16() -> None:
    assert message_bytes("int8", 2**20) / message_bytes("float16", 2**20) == pytest.approx(
        0.508, abs=1e-3
    )


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_bytes_that_are_no_message_are_refused(wire: WireFormat) -> None:
    end = edge_wire(wire, start())
    size = message_bytes(wire, NUMBERS)
    with pytest.raises(RemoteProtocolError, match=f"expected a message of {size} bytes"):
        end.judge(torch.zeros(size - 1, dtype=torch.uint8))
    with pytest.raises(RemoteProtocolError, match="finite parameters"):
        end.judge(torch.full((size,), 0xFF, dtype=torch.uint8))
    end.judge(edge_wire(wire, start()).send(moved(1)))


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_an_edge_is_settled_once_for_each_message(wire: WireFormat) -> None:
    end = edge_wire(wire, start())
    message = end.send(moved(1)).clone()
    end.settle(message)
    with pytest.raises(LocalProtocolError, match="before an edge is settled"):
        end.settle(message)


def test_values_beyond_float16_stay_finite() -> None:
    end = edge_wire("float16", start())
    end.judge(end.send(torch.full((NUMBERS,), 1e9)))


def test_a_format_that_is_none_is_named() -> None:
    with pytest.raises(SettingsError, match="wire of float32, float16, int8, got 'int4'"):
        edge_wire("int4", start())  # type: ignore[arg-type]
