"""The files of a published checkpoint: the layout of Hugging Face, without anything that runs."""

import re
from collections.abc import Container

from protocol.errors import RemoteProtocolError

_NAMES = re.compile(
    r"config\.json|generation_config\.json|lockstep\.json|README\.md"
    r"|model\.safetensors|model\.safetensors\.index\.json|model-\d{5}-of-\d{5}\.safetensors"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json"
)

FILES_MAX = 1024
"""Files of one checkpoint: a hundred shards, and some small ones."""

CARD_NAME = "README.md"
"""The model card."""


def require_name(name: str) -> str:
    """The name of a checkpoint's file; `RemoteProtocolError` for any other, such as a program or a
    path.
    """
    if not is_checkpoint_file(name):
        raise RemoteProtocolError(f"expected a file of a checkpoint, got {name[:64]!a}")
    return name


def is_checkpoint_file(name: str) -> bool:
    """Whether a checkpoint has a file of this name."""
    return _NAMES.fullmatch(name) is not None


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
