"""Text to tokens and back.

Two kinds: `ByteTokenizer`, whose tokens are the 256 bytes of UTF-8 and one end of document, and
`SubwordTokenizer`, any `tokenizer.json` of Hugging Face's tokenizers library, loaded or trained
here. A tokenizer travels as JSON inside a manifest or a checkpoint, so data and weights always say
how to read them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
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

VOCABULARY_MAX = 2**22
"""Tokens of a vocabulary at most: 16 times the largest published one."""

BPE_TRAINING_CHARACTERS_MAX = 100_000_000
"""Text that a byte-pair encoding is trained on at most: more no longer changes the merges, but
takes memory."""


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

    def to_library(self) -> tuple[str, str]:
        """The same tokenizer as a `tokenizer.json`, and the name of its document end there."""


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

    def to_library(self) -> tuple[str, str]:
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
        return inner.to_str(), DOCUMENT_ENDS[0]


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
    def trained(cls, texts: Iterable[str], vocabulary_size: int) -> Self:
        """A byte-level byte-pair encoding of the given size (fewer when the text has fewer
        pairs), learnt from the first `BPE_TRAINING_CHARACTERS_MAX` characters of `texts`.
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
        inner.train_from_iterator(_beginning(texts), trainer)
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

    def to_library(self) -> tuple[str, str]:
        """The library's own file and the name of its document end."""
        return self._inner.to_str(), self._document_end_name


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


def tokenizer_for(choice: str, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer a person asked for: "bytes", "bpe:SIZE" (learnt from `texts()`), or a
    tokenizer.json.

    Raises `SettingsError` for anything else.
    """
    if choice == "bytes":
        return ByteTokenizer()
    if size := re.fullmatch(r"bpe:([0-9]{1,9})", choice):
        return SubwordTokenizer.trained(texts(), int(size[1]))
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


def _beginning(texts: Iterable[str]) -> Iterator[str]:
    """The first `BPE_TRAINING_CHARACTERS_MAX` characters of all texts."""
    room = BPE_TRAINING_CHARACTERS_MAX
    for text in texts:
        yield text[:room]
        room -= len(text)
        if room <= 0:
            return
