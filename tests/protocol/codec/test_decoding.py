"""Whatever is wrong with bytes from a file or a stranger, their reader catches it."""

from pathlib import Path

import msgspec
import pytest

from protocol.codec import decoding
from protocol.codec.decoding import UNREADABLE

ROOT = Path(decoding.__file__).parents[2]


class Note(msgspec.Struct):
    text: str = ""


@pytest.mark.parametrize(
    "blob", [b"", b"{", b"[]", b'{"text": 1}', b'{"text": "\xb2"}', b"[" * 100_000, b"\xff\xfe"]
)
def test_json_that_is_none_raises_one_of_them(blob: bytes) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(blob, type=Note)


@pytest.mark.parametrize(
    "blob", [b"", b"\xc1", b"\x90", b"\x81\xa4text\x01", b"\x81\xa4text\xa1\xb2", b"\x91" * 100_000]
)
def test_message_pack_that_is_none_raises_one_of_them(blob: bytes) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.msgpack.decode(blob, type=Note if len(blob) < 9 else None)


def test_no_reader_catches_only_some_of_them() -> None:
    some = ("msgspec.DecodeError", "msgspec.MsgspecError")
    readers = [
        path
        for folder in ("protocol", "border", "coordinator", "node", "lockstep")
        for path in (ROOT / folder).rglob("*.py")
        if any(name in path.read_text("utf-8") for name in some)
    ]
    allowed = {Path(decoding.__file__), ROOT / "protocol" / "runfile.py"}  # it catches ValueError
    assert set(readers) == allowed
