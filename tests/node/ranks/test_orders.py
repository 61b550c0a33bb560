import msgspec
import pytest

from node.ranks.orders import (
    Apply,
    ApplySums,
    Begin,
    Digest,
    Extract,
    Fetch,
    Hold,
    Leave,
    Limit,
    Load,
    MakeStep,
    Order,
    Put,
    Regroup,
    Rest,
    Sum,
    Work,
    decode_order,
    encode,
)


@pytest.mark.parametrize(
    "order",
    [
        Hold(b"{}", "a" * 32, 2**62 - 1, "bfloat16"),
        Load(),
        Work((2, 0, 1), b"abc", anew=True, recomputes=True),
        Regroup(),
        Sum(8),
        Begin(goes_on=True),
        MakeStep(0.1),
        Extract(-1),
        Apply(((3, 100), (2, 0)), 0.1, 1.0),
        ApplySums(100, (3, 2, 5, -1), 1.0),
        Put("head"),
        Fetch("head"),
        Digest(),
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
        msgspec.msgpack.encode({"type": "step", "learning_rate": "much"}),
    ],
)
def test_no_other_order_is_read(words: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_order(words)
