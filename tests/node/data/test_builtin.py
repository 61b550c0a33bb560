"""The built-in text is the same on every machine."""

import hashlib

from node.data.builtin import BUILTIN_CORPUS, builtin_documents

SHA256 = "96958d8b236141b1d8a333c2e526a30d732607fc582d7e4079969b922f4627a9"


def test_names_and_texts_never_change() -> None:
    hasher, count = hashlib.sha256(), 0
    for name, text in builtin_documents():
        hasher.update(f"{name}\0{text}\0".encode())
        count += 1
    assert (count, hasher.hexdigest()) == (990, SHA256)
    assert BUILTIN_CORPUS == "lockstep-2026"


def test_a_part_stops_before_the_limit() -> None:
    texts = [text for _, text in builtin_documents(100_000)]
    assert 50_000 < sum(len(text.encode()) for text in texts) <= 100_000
