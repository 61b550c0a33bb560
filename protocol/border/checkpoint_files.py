"""The files of a published checkpoint: the layout of Hugging Face, without anything that runs."""

import re
from collections.abc import Container

from protocol.errors import RemoteProtocolError
from protocol.limits import TOKENIZER_BYTES_MAX

CONFIGURATION_BYTES_MAX = 256 * 1024
"""Bytes of a configuration, which comes of a run file's `model.config`. The coordinator parses it:
the worst JSON of that length takes hundredths of a second."""

INDEX_BYTES_MAX = 16 * 1024**2
"""Bytes of an index of files: a hundred thousand tensors."""

ABOUT_BYTES_MAX = 2 * TOKENIZER_BYTES_MAX
"""Bytes of `lockstep.json`: a tokenizer as a text of JSON within JSON, and some facts."""

CARD_NAME = "README.md"
"""The model card."""

CARD_BYTES_MAX = 1024**2
"""Bytes of a model card, which people read; it quotes the run file."""

_BYTES_MAX = {
    "config.json": CONFIGURATION_BYTES_MAX,
    "generation_config.json": CONFIGURATION_BYTES_MAX,
    "tokenizer_config.json": CONFIGURATION_BYTES_MAX,
    "special_tokens_map.json": CONFIGURATION_BYTES_MAX,
    "tokenizer.json": TOKENIZER_BYTES_MAX,
    "lockstep.json": ABOUT_BYTES_MAX,
    "model.safetensors.index.json": INDEX_BYTES_MAX,
    CARD_NAME: CARD_BYTES_MAX,
}
"""Longest files other than those with parameters, for which there is the room that is left."""

_PARAMETERS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")

FILES_MAX = 1024
"""Files of one checkpoint: a hundred shards, and some small ones."""


def require_name(name: str) -> str:
    """The name of a checkpoint's file; `RemoteProtocolError` for any other, such as a program or a
    path.
    """
    if not is_checkpoint_file(name):
        raise RemoteProtocolError(f"expected a file of a checkpoint, got {name[:64]!a}")
    return name


def is_checkpoint_file(name: str) -> bool:
    """Whether a checkpoint has a file of this name."""
    return name in _BYTES_MAX or _PARAMETERS.fullmatch(name) is not None


def require_size(name: str, size: int) -> None:
    """`RemoteProtocolError` for a file of that name which is longer than its kind can be."""
    if size > (most := _BYTES_MAX.get(name, size)):
        raise RemoteProtocolError(f"{name}: expected at most {most:,} bytes, got {size:,}")


def is_configuration(name: str) -> bool:
    """Whether the file is a configuration, which may name a program to load."""
    return _BYTES_MAX.get(name) == CONFIGURATION_BYTES_MAX


def is_parameters(name: str) -> bool:
    """Whether the file holds parameters."""
    return name.endswith(".safetensors")


_TIED = {
    "model.embed_tokens.weight": "lm_head.weight",
    "model.decoder.embed_tokens.weight": "lm_head.weight",
    "transformer.wte.weight": "lm_head.weight",
    "transformer.word_embeddings.weight": "lm_head.weight",
    "gpt_neox.embed_in.weight": "embed_out.weight",
}
"""Embeddings that a file keeps in place of an output layer with the same weights, which a run knows
by the latter's name: the first of the two in sorted order."""


def run_name(name: str, present: Container[str]) -> str:
    """The name that a run has for a tensor of a file with the names `present`."""
    head = _TIED.get(name, name)
    return name if head in present else head
