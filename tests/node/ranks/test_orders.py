import msgspec
import pytest

from node.ranks.orders import (
    Hold,
    Leave,
    Limit,
    Load,
    Order,
    Rest,
    Sum,
    Work,
    decode_order,
    encode,
)


@pytest.mark.parametrize(
    "order",
    [
        Hold("llama", {"hidden_size": 4}, "bfloat16", "float32"),
        Load(),
        Work((2, 0, 1), b"abc", anew=True, recomputes=True),
        Sum(),
        Limit(40),
        Rest(),
        Leave(),
    ],
)
def test_an_order_arrives_as_it_was_given(order: Order) -> None:
    assert decode_order(encode(order)) == order


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x00",
        msgspec.msgpack.encode({"type": "run", "command": "rm"}),
        msgspec.msgpack.encode({"type": "limit", "gpu_memory": "all"}),
        msgspec.msgpack.encode({"type": "hold", "model": "llama", "config": {}, "weights": "x"}),
    ],
)
def test_no_other_order_is_read(words: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_order(words)
