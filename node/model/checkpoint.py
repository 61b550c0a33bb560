"""Published checkpoints: a model, its tokenizer and what they are, in one directory.

A checkpoint is a directory in Hugging Face's layout (configuration, safetensors weights, tokenizer)
that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load, and
`lockstep.json`, which says what it is: run, round, digest, tokenizer. It appears whole or not at
all, and an older one survives every failure. Nothing here reads pickles or code.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from node.data.manifest import TokenizerFields
from node.data.tokenizer import Tokenizer, tokenizer_from_json
from node.model.build import named_parameters_once
from node.model.configuration import quiet_transformers
from node.system.files import outlasting, replacing_directory, storage_errors, whole_directory
from protocol.border.checkpoint_files import ABOUT_BYTES_MAX
from protocol.codec.decoding import UNREADABLE
from protocol.errors import DataError, LocalProtocolError, StorageError, VersionError

CHECKPOINT_VERSION = 1
ABOUT_NAME = "lockstep.json"

METADATA_BYTES_MAX = 64 * 1024
"""Bytes of what `lockstep.json` says beside the tokenizer: some facts."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint."""

    model: nn.Module
    """The causal language model, float32, in evaluation mode."""

    tokenizer: Tokenizer
    """The tokenizer it was trained with."""

    metadata: dict[str, Any]
    """Run id, round and digest, as given when it was saved."""


@outlasting
def save_checkpoint(
    directory: Path,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
) -> None:
    """Replaces `directory` by a checkpoint of `parameters`.

    parameters: by the names of `named_parameters_once(model)`; buffers come from `model`, whose own
    parameters may be ahead (docs/explain/round.md, overlap). metadata: JSON values. Raises
    `StorageError` when the disk is full, and then what was in `directory` is still there;
    `LocalProtocolError` for other names.
    """
    state = _full_state(model, parameters)
    about = {
        "version": CHECKPOINT_VERSION,
        "metadata": dict(metadata),
        "tokenizer": tokenizer.to_json(),
    }
    library_file, special = tokenizer.to_library()
    library_config = {"tokenizer_class": "PreTrainedTokenizerFast", **special, **_length(model)}
    bytes_needed = sum(tensor.nbytes for tensor in parameters.values())
    with (
        replacing_directory(directory, bytes_needed) as temporary,
        safetensors_errors(directory, bytes_needed),
    ):
        model.generation_config.eos_token_id = tokenizer.document_end  # type: ignore[union-attr]
        model.save_pretrained(temporary, state_dict=state)  # type: ignore[operator]
        (temporary / "tokenizer.json").write_text(library_file, encoding="utf-8")
        (temporary / "tokenizer_config.json").write_text(
            json.dumps(library_config), encoding="utf-8"
        )
        (temporary / ABOUT_NAME).write_text(json.dumps(about, sort_keys=True), encoding="utf-8")


def load_checkpoint(directory: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """The checkpoint in `directory`; `DataError` when there is none, `StorageError` when it is
    damaged.
    """
    directory = whole_directory(directory)
    tokenizer, metadata = _about(directory / ABOUT_NAME)
    transformers = quiet_transformers()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except Exception as error:  # transformers and safetensors raise whatever a damaged file breaks
        raise StorageError(
            f"cannot load the checkpoint {directory}: {' '.join(str(error).split())[:300]}"
        ) from error
    origin = str(directory / ABOUT_NAME)
    return Checkpoint(model.to(device).eval(), tokenizer_from_json({**tokenizer}, origin), metadata)


def _length(model: nn.Module) -> dict[str, int]:
    """The longest text that the model reads at once, as the library calls it; nothing where it has
    no bound.
    """
    config: Any = model.config
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return {"model_max_length": positions} if positions and positions > 0 else {}


def _full_state(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's state with `parameters` in place of its own, under every name that they have."""
    once = named_parameters_once(model)
    if once.keys() != parameters.keys():
        wrong = sorted(once.keys() ^ parameters.keys())[:5]
        raise LocalProtocolError(
            f"checkpoint: expected the model's parameters, they differ in {wrong}"
        )
    name_of = {id(parameter): name for name, parameter in once.items()}
    state: dict[str, Tensor] = model.state_dict()
    for alias, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in name_of:
            state[alias] = parameters[name_of[id(parameter)]].detach()
    return state


class _Version(msgspec.Struct):
    version: int


class _About(msgspec.Struct):
    """What `lockstep.json` says: whoever wrote it may be a stranger."""

    tokenizer: TokenizerFields
    metadata: msgspec.Raw


def _about(path: Path) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The tokenizer and the metadata in `lockstep.json`, checked."""
    if not path.is_file():
        raise DataError(f"{path.parent}: expected a checkpoint with {ABOUT_NAME}, found none")
    with storage_errors(path), path.open("rb") as file:
        blob = file.read(ABOUT_BYTES_MAX + 1)
    if len(blob) > ABOUT_BYTES_MAX:
        raise StorageError(f"{path}: expected at most {ABOUT_BYTES_MAX:,} bytes, got more")
    try:
        if (version := msgspec.json.decode(blob, type=_Version).version) != CHECKPOINT_VERSION:
            raise VersionError(f"{path}: expected version {CHECKPOINT_VERSION}, got {version}")
        about = msgspec.json.decode(blob, type=_About)
        if len(bytes(about.metadata)) > METADATA_BYTES_MAX:
            raise msgspec.ValidationError(f"Expected {METADATA_BYTES_MAX:,} bytes of metadata")
        return about.tokenizer, msgspec.json.decode(about.metadata, type=dict[str, Any])
    except UNREADABLE as error:
        raise StorageError(f"{path} is damaged: {error}") from None


@contextmanager
def safetensors_errors(path: Path, bytes_needed: int) -> Iterator[None]:
    """Safetensors reports a full disk in its own type, and a serialization error is nothing else
    here but a shortage, of which it tells the number.
    """
    try:
        yield
    except SafetensorError as error:
        if number := re.search(r"\(os error ([0-9]+)\)", str(error)):
            with storage_errors(path, bytes_needed, doing="write"):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise StorageError(
            f"cannot write {path}, which needs {bytes_needed:,} bytes: {error}; free some space "
            "there"
        ) from error
