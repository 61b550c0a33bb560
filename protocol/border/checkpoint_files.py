"""The files of a published checkpoint: the layout of Hugging Face, without anything that runs."""

import re

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
    if not _NAMES.fullmatch(name):
        raise RemoteProtocolError(f"expected a file of a checkpoint, got {name[:64]!a}")
    return name


def is_parameters(name: str) -> bool:
    """Whether the file holds parameters."""
    return name.endswith(".safetensors")
