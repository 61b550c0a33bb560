"""Names of payloads in receipts: eight bytes, of author and root both."""

from protocol.ids import PeerId, sha256
from protocol.sums.receipts import NAME_BYTES, receipt_name

ONE, OTHER = PeerId("01" * 16), PeerId("02" * 16)


def test_a_name_is_of_one_author_and_one_root() -> None:
    names = {receipt_name(who, sha256(root)) for who in (ONE, OTHER) for root in (b"a", b"b")}
    assert len(names) == 4
    assert all(0 <= name < 2 ** (8 * NAME_BYTES) for name in names)
    digest = sha256(b"lockstep.receipt.v1" + ONE.encode() + sha256(b"root"))
    assert receipt_name(ONE, sha256(b"root")).to_bytes(NAME_BYTES, "big") == digest[:NAME_BYTES]
