"""Text to tokens and back."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from node.data.tokenizer import (
    ByteTokenizer,
    SubwordTokenizer,
    Tokenizer,
    tokenizer_for,
    tokenizer_from_json,
)
from protocol.errors import DataError, SettingsError

TEXT = "def add(first, second):\n    return first + second  # naïve, 加法 🙂\n"


def _no_texts() -> Iterator[str]:
    raise AssertionError("no text should be read")


@pytest.fixture(scope="module")
def trained() -> SubwordTokenizer:
    return SubwordTokenizer.trained([TEXT] * 50, 300)


def _library_file(path: Path, *words: str) -> Path:
    LibraryTokenizer(
        models.WordLevel({word: token for token, word in enumerate(words)}, words[0])
    ).save(str(path))
    return path


@settings(max_examples=50)
@given(st.text())
def test_bytes_give_any_text_back(text: str) -> None:
    byte_level = ByteTokenizer()
    assert byte_level.decode(byte_level.encode(text).tolist()) == text
    assert byte_level.encode(text).tolist() == list(text.encode())


@settings(max_examples=50)
@given(text=st.text())
def test_trained_subwords_give_any_text_back(trained: SubwordTokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text).tolist()) == text


def test_bytes_have_one_token_more_for_the_document_end() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocabulary_size, tokenizer.document_end) == (257, 256)
    assert tokenizer.decode([104, 105, 256, 33]) == "hi!"


def test_broken_utf8_and_lone_surrogates_are_replaced() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([0xC3]) == "\ufffd"
    assert tokenizer.encode("\ud800").tolist() == [ord("?")]


def test_training_keeps_its_size_and_is_repeatable(trained: SubwordTokenizer) -> None:
    assert trained.vocabulary_size == 300
    assert trained.decode([trained.document_end]) == ""
    assert len(trained.encode(TEXT)) < len(TEXT.encode()) / 2
    assert SubwordTokenizer.trained([TEXT] * 50, 300).to_json() == trained.to_json()


def test_training_reads_only_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.data.tokenizer.BPE_TRAINING_CHARACTERS_MAX", 10)

    def texts() -> Iterator[str]:
        yield "12345678"
        yield "abcdef"
        raise AssertionError("the limit is exceeded")

    assert SubwordTokenizer.trained(texts(), 257).vocabulary_size == 257


@pytest.mark.timeout(60)  # uncut, each of these words takes hours
@pytest.mark.parametrize("sign", ["x", "7", "-", "_", " ", "\n", "語"])
def test_one_enormous_word_is_learnt_from_in_seconds(sign: str) -> None:
    tokenizer = SubwordTokenizer.trained([sign * 3_000_000 + "\n" + "word " * 2000], 300)
    text = sign * 1000 + " word"
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
    assert tokenizer.encode(" word").size == 1


def test_cutting_leaves_ordinary_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = [TEXT, "x" * 200, " " * 200, "a-b_c " * 300]
    cut = SubwordTokenizer.trained(ordinary, 300).to_json()
    monkeypatch.setattr("node.data.tokenizer._cut", lambda text: [text])
    assert SubwordTokenizer.trained(ordinary, 300).to_json() == cut


def test_a_long_training_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.data.tokenizer.LEARNING_EVERY_S", 0.01)
    words: list[str] = []
    heard = threading.Event()

    def learning(word: str) -> None:
        words.append(word)
        if word.startswith(f"has read {len(TEXT):,} characters"):
            heard.set()

    def texts() -> Iterator[str]:
        yield TEXT
        assert heard.wait(30)  # the voice is another thread: training waits here until it speaks

    SubwordTokenizer.trained(texts(), 270, learning)
    assert any(word.startswith(f"has read {len(TEXT):,} characters") for word in words)


@pytest.mark.parametrize("size", [256, 2**22 + 1])
def test_a_vocabulary_outside_the_bounds_is_refused(size: int) -> None:
    with pytest.raises(SettingsError, match=f"257 to 4194304 tokens, got {size}"):
        SubwordTokenizer.trained([TEXT], size)


def test_both_kinds_survive_json(trained: SubwordTokenizer) -> None:
    for tokenizer in (ByteTokenizer(), trained):
        value = json.loads(json.dumps(tokenizer.to_json()))
        again = tokenizer_from_json(value)
        assert again.to_json() == tokenizer.to_json()
        assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
        assert (again.kind, again.document_end) == (tokenizer.kind, tokenizer.document_end)


@pytest.mark.parametrize(
    "value",
    [None, {}, {"kind": "words"}, {"kind": "subwords", "document_end": "</s>", "file": "{"}],
)
def test_what_describes_no_tokenizer_is_bad_data(value: object) -> None:
    with pytest.raises(DataError, match=r"manifest.json: expected"):
        tokenizer_from_json(value, "manifest.json")


def test_a_file_with_a_usual_document_end_is_understood(tmp_path: Path) -> None:
    tokenizer = SubwordTokenizer.from_file(
        _library_file(tmp_path / "tokenizer.json", "a", "b", "</s>")
    )
    assert (tokenizer.document_end, tokenizer.vocabulary_size) == (2, 3)


def test_a_file_without_document_end_says_what_to_do(tmp_path: Path) -> None:
    path = _library_file(tmp_path / "tokenizer.json", "a", "b", "STOP")
    with pytest.raises(
        SettingsError, match=r"tokenizer.json: expected an end-of-document token.*added_tokens"
    ):
        SubwordTokenizer.from_file(path)
    assert SubwordTokenizer.from_file(path, "STOP").document_end == 2


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(SettingsError, match="expected a readable tokenizer"):
        SubwordTokenizer.from_file(path)
    path.write_text("{}")
    with pytest.raises(SettingsError, match="tokenizers library's format"):
        SubwordTokenizer.from_file(path)


def test_a_person_chooses_bytes_training_or_a_file(tmp_path: Path) -> None:
    assert tokenizer_for("bytes", _no_texts).kind == "bytes"
    assert tokenizer_for("bpe:280", lambda: [TEXT] * 30).vocabulary_size == 280
    path = _library_file(tmp_path / "some.json", "a", "<eos>")
    assert tokenizer_for(str(path), _no_texts).vocabulary_size == 2
    with pytest.raises(SettingsError, match=r'expected "bytes", "bpe:SIZE" or .*got \'letters\''):
        tokenizer_for("letters", _no_texts)


def test_both_kinds_become_library_files_with_the_same_tokens(trained: SubwordTokenizer) -> None:
    tokenizers: list[Tokenizer] = [ByteTokenizer(), trained]
    for tokenizer in tokenizers:
        text, special = tokenizer.to_library()
        library = LibraryTokenizer.from_str(text)
        assert library.encode(TEXT).ids == tokenizer.encode(TEXT).tolist()
        assert library.decode(library.encode(TEXT).ids) == TEXT
        assert library.token_to_id(special["eos_token"]) == tokenizer.document_end
        assert special["pad_token"] == special["eos_token"]
        assert library.get_vocab_size() == tokenizer.vocabulary_size


def test_a_token_that_fills_up_batches_keeps_its_meaning(tmp_path: Path) -> None:
    path = _library_file(tmp_path / "some.json", "a", "<eos>", "[PAD]")
    special = SubwordTokenizer.from_file(path).to_library()[1]
    assert special == {"eos_token": "<eos>", "pad_token": "[PAD]"}
