"""Text to tokens and back.

Two kinds: `ByteTokenizer`, whose tokens are the 256 bytes of UTF-8 and one end of document, and
`SubwordTokenizer`, any `tokenizer.json` of Hugging Face's tokenizers library, loaded or trained
here. A tokenizer travels as JSON inside a manifest or a checkpoint, so data and weights always say
how to read them.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from protocol.errors import DataError, SettingsError

DOCUMENT_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|im_end|>",
)
"""Names under which published tokenizers know their end of document, the most specific first."""

PADS = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
"""Names under which published tokenizers know the token that fills up a batch."""

VOCABULARY_MAX = 2**22
"""Tokens of a vocabulary at most: 16 times the largest published one."""

BPE_TRAINING_CHARACTERS_MAX = 100_000_000
"""Text that a byte-pair encoding is trained on at most: more no longer changes the merges, but
takes memory."""

WORD_CHARACTERS_MAX = 200
"""Longest run of letters, of digits, of other signs or of spaces that a byte-pair encoding is
trained on in one piece: the trainer's time grows with the square of a word's length."""

LEARNING_EVERY_S = 5
"""Time between two words about a tokenizer that is learnt."""

Learning = Callable[[str], None]
"""Told in words how far the learning of a tokenizer is, about every `LEARNING_EVERY_S`."""

_LONG = f"{{{WORD_CHARACTERS_MAX + 1},}}"
_LONG_RUN = re.compile(rf"[^\W\d_]{_LONG}|\d{_LONG}|(?:[^\w\s]|_){_LONG}|\s{_LONG}")

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTE_CHARACTERS = [
    chr(
        byte
        if byte in _PRINTABLE
        else 0x100 + sum(other not in _PRINTABLE for other in range(byte))
    )
    for byte in range(256)
]
"""The character by which byte-level encodings write each byte: itself if it prints, else the next
one from U+0100 on (Radford et al., GPT-2, 2019)."""


class Tokenizer(Protocol):
    """A tokenizer, as data, generation and evaluation use it."""

    @property
    def kind(self) -> str:
        """The kind, as `to_json` records it."""

    @property
    def vocabulary_size(self) -> int:
        """Every token is in [0, vocabulary_size)."""

    @property
    def document_end(self) -> int:
        """The token after each document."""

    def encode(self, text: str) -> np.ndarray:
        """Tokens of a text, int64 [tokens], without a document end."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of tokens; document ends vanish, broken UTF-8 becomes U+FFFD."""

    def to_json(self) -> dict[str, Any]:
        """A value from which `tokenizer_from_json` makes an equal tokenizer."""

    def to_library(self) -> tuple[str, dict[str, str]]:
        """The same tokenizer as a `tokenizer.json`, and what the library has to be told of it: the
        names of its document end and of the token that fills up a batch.
        """


class ByteTokenizer:
    """UTF-8 bytes are the tokens."""

    kind = "bytes"
    vocabulary_size = 257
    document_end = 256

    def encode(self, text: str) -> np.ndarray:
        """UTF-8 bytes of `text` (a lone surrogate becomes "?"), int64."""
        return np.frombuffer(text.encode(errors="replace"), dtype=np.uint8).astype(np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of the bytes among the tokens."""
        return bytes(token for token in tokens if 0 <= token < 256).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """Only the kind: there is nothing to configure."""
        return {"kind": self.kind}

    def to_library(self) -> tuple[str, dict[str, str]]:
        """A byte-pair encoding without any merge: byte b is token b. Writes pieces as the library
        does, each byte as one printable character.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        inner = Tokenizer(
            models.BPE({character: byte for byte, character in enumerate(_BYTE_CHARACTERS)}, [])
        )
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        inner.add_special_tokens([AddedToken(DOCUMENT_ENDS[0], special=True)])
        return inner.to_str(), {"eos_token": DOCUMENT_ENDS[0], "pad_token": DOCUMENT_ENDS[0]}


class SubwordTokenizer:
    """A tokenizer of Hugging Face's tokenizers library, and its end of document."""

    kind = "subwords"

    def __init__(
        self, inner: Any, document_end: str | None = None, origin: str = "tokenizer"
    ) -> None:
        """inner: a `tokenizers.Tokenizer`. Raises `SettingsError` when it has no end of document of
        that name (or of any usual name, if none is given); `origin` is how the message calls it.
        """
        names = DOCUMENT_ENDS if document_end is None else (document_end,)
        found = [name for name in names if inner.token_to_id(name) is not None]
        if not found:
            raise SettingsError(
                f"{origin}: expected an end-of-document token named {' or '.join(names)}, found "
                "none; "
                "add one to its added_tokens, or say which of its tokens ends a document"
            )
        self._inner = inner
        self._document_end_name = found[0]
        self.document_end: int = inner.token_to_id(found[0])
        self.vocabulary_size: int = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        if self.vocabulary_size > VOCABULARY_MAX:
            raise SettingsError(
                f"{origin}: expected at most {VOCABULARY_MAX} tokens, got {self.vocabulary_size}"
            )

    @classmethod
    def from_file(cls, path: Path, document_end: str | None = None) -> Self:
        """The tokenizer of a `tokenizer.json`; `SettingsError` when it is not one."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: expected a readable tokenizer.json: {error}") from error
        return cls(_parsed(text, str(path)), document_end, str(path))

    @classmethod
    def trained(
        cls, texts: Iterable[str], vocabulary_size: int, learning: Learning | None = None
    ) -> Self:
        """A byte-level byte-pair encoding of the given size (fewer when the text has fewer
        pairs), learnt from the first `BPE_TRAINING_CHARACTERS_MAX` characters of `texts`, whose
        runs of more than `WORD_CHARACTERS_MAX` are cut.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        if not 257 <= vocabulary_size <= VOCABULARY_MAX:
            raise SettingsError(
                f"tokenizer bpe: expected 257 to {VOCABULARY_MAX} tokens, got {vocabulary_size}"
            )
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=[DOCUMENT_ENDS[0]],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        read = _Read()
        with _heartbeat(learning, read):
            inner.train_from_iterator(read.pieces(texts), trainer)
        return cls(inner)

    def encode(self, text: str) -> np.ndarray:
        """Tokens of `text` without special tokens around it, int64. Raises `DataError` for a text
        that the library cannot encode.
        """
        try:
            return np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.int64)
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"cannot encode a text of {len(text)} characters: {error}") from error

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of the tokens that are not special."""
        text: str = self._inner.decode(list(tokens), skip_special_tokens=True)
        return text

    def to_json(self) -> dict[str, Any]:
        """The library's own file as text, and which token ends a document."""
        return {
            "kind": self.kind,
            "document_end": self._document_end_name,
            "file": self._inner.to_str(),
        }

    def to_library(self) -> tuple[str, dict[str, str]]:
        """The library's own file; batches are filled up with document ends where it has no token
        for that.
        """
        end = self._document_end_name
        pads = (name for name in PADS if self._inner.token_to_id(name) is not None)
        return self._inner.to_str(), {"eos_token": end, "pad_token": next(pads, end)}


def tokenizer_from_json(value: Any, origin: str = "tokenizer") -> Tokenizer:
    """The tokenizer that `to_json` described; `DataError` naming `origin` when it describes
    none.
    """
    match value:
        case {"kind": "bytes"}:
            return ByteTokenizer()
        case {"kind": "subwords", "document_end": str(document_end), "file": str(text)}:
            try:
                return SubwordTokenizer(_parsed(text, origin), document_end, origin)
            except (
                SettingsError
            ) as error:  # written by a program, so no person's setting is to blame
                raise DataError(str(error)) from error
        case _:
            raise DataError(
                f"{origin}: expected a tokenizer of kind bytes or subwords, got {str(value)[:80]}"
            )


def tokenizer_for(
    choice: str, texts: Callable[[], Iterable[str]], learning: Learning | None = None
) -> Tokenizer:
    """The tokenizer a person asked for: "bytes", "bpe:SIZE" (learnt from `texts()`), or a
    tokenizer.json.

    Raises `SettingsError` for anything else.
    """
    if choice == "bytes":
        return ByteTokenizer()
    if size := re.fullmatch(r"bpe:([0-9]{1,9})", choice):
        return SubwordTokenizer.trained(texts(), int(size[1]), learning)
    if choice.endswith(".json"):
        return SubwordTokenizer.from_file(Path(choice).expanduser())
    raise SettingsError(
        f'tokenizer: expected "bytes", "bpe:SIZE" or the path of a tokenizer.json, got {choice!r}'
    )


def _parsed(text: str, origin: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise SettingsError(
            f"{origin}: expected the tokenizers library's format: {error}"
        ) from error


class _Read:
    """The text of a training: what was read of it so far."""

    def __init__(self) -> None:
        self.characters = 0
        self.whole = False

    def pieces(self, texts: Iterable[str]) -> Iterator[str]:
        """The first `BPE_TRAINING_CHARACTERS_MAX` characters of all texts, long runs cut."""
        for text in texts:
            beginning = text[: BPE_TRAINING_CHARACTERS_MAX - self.characters]
            self.characters += len(beginning)
            yield from _cut(beginning)
            if self.characters >= BPE_TRAINING_CHARACTERS_MAX:
                break
        self.whole = True


def _cut(text: str) -> Iterator[str]:
    """The text in pieces without a run of more than `WORD_CHARACTERS_MAX`."""
    start = 0
    for run in _LONG_RUN.finditer(text):
        for end in range(run.start() + WORD_CHARACTERS_MAX, run.end(), WORD_CHARACTERS_MAX):
            yield text[start:end]
            start = end
    yield text[start:]


@contextmanager
def _heartbeat(learning: Learning | None, read: _Read) -> Iterator[None]:
    """Words about the training while it runs; the library reports nothing by itself."""
    if learning is None:
        yield
        return
    ended = threading.Event()

    def speak() -> None:
        spent_s = 0
        while not ended.wait(LEARNING_EVERY_S):
            spent_s += LEARNING_EVERY_S
            doing = "learns merges from" if read.whole else "has read"
            learning(f"{doing} {read.characters:,} characters, {spent_s} s")

    voice = threading.Thread(target=speak, name="learning", daemon=True)
    voice.start()
    try:
        yield
    finally:
        ended.set()
        voice.join()
