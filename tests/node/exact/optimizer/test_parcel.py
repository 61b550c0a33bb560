import pytest

from node.exact.optimizer.parcel import decode, encode, encode_failure, failure
from protocol.errors import RemoteProtocolError


@pytest.mark.parametrize("count", [0, 1, 8, 9])
def test_flags_and_payloads_come_back(count: int) -> None:
    present = [index % 3 == 0 for index in range(count)]
    payloads = [b"first", b"", b"third"]
    parcel = encode(present, payloads)
    assert decode(parcel, count, 3) == (present, payloads)
    assert not failure(parcel)


def test_a_parcel_of_another_length_is_refused() -> None:
    parcel = encode([True], [b"payload"])
    for wrong in (parcel[:5], parcel[:-1], parcel + b"x"):
        with pytest.raises(RemoteProtocolError, match="bytes"):
            decode(wrong, 1, 1)


def test_a_failure_is_told() -> None:
    assert failure(encode_failure("RuntimeError: no memory")) == "RuntimeError: no memory"
