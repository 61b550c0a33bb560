"""Parameters on disk: published checkpoints, a node's own state, and what a checkpoint can do.

A checkpoint is a directory in Hugging Face's layout (configuration, safetensors weights, tokenizer)
that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load, and
`lockstep.json`, which says what it is: run, round, digest, tokenizer. It appears whole or not at
all, and an older one survives every failure. Nothing here reads pickles or code."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from node.data.corpus import Corpus
from node.data.tokenizer import Tokenizer, tokenizer_from_json
from node.model.training import TrainingModel, named_parameters_once, quiet_transformers
from node.system.files import replacing_directory, replacing_file, storage_errors, whole_directory
from protocol.errors import DataError, LocalProtocolError, StorageError, VersionError

CHECKPOINT_VERSION = 1
ABOUT_NAME = "lockstep.json"

ABOUT_BYTES_MAX = 256 * 1024**2
"""Cap of `lockstep.json`, which holds a tokenizer: as for manifests."""

_METADATA_KEY = "lockstep"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint."""

    model: nn.Module
    """The causal language model, float32, in evaluation mode."""

    tokenizer: Tokenizer
    """The tokenizer it was trained with."""

    metadata: dict[str, Any]
    """What was said when it was saved: run id, round, digest."""


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
) -> None:
    """Replaces `directory` by a checkpoint of `parameters`.

    parameters: by the names of `named_parameters_once(model)`; buffers come from `model`, whose own
    parameters may be ahead (DESIGN.md section 5, overlap). metadata: JSON values. Raises
    `StorageError` when the disk is full, and then what was in `directory` is still there;
    `LocalProtocolError` for other names."""
    state = _full_state(model, parameters)
    about = {
        "version": CHECKPOINT_VERSION,
        "metadata": dict(metadata),
        "tokenizer": tokenizer.to_json(),
    }
    library_file, document_end = tokenizer.to_library()
    library_config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": document_end}
    bytes_needed = sum(tensor.nbytes for tensor in parameters.values())
    with (
        replacing_directory(directory, bytes_needed) as temporary,
        _safetensors_errors(directory, bytes_needed),
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
    damaged."""
    directory = whole_directory(directory)
    about, origin = _about(directory / ABOUT_NAME), str(directory / ABOUT_NAME)
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
    return Checkpoint(
        model.to(device).eval(), tokenizer_from_json(about["tokenizer"], origin), about["metadata"]
    )


def evaluate_checkpoint(
    directory: Path,
    corpus: Corpus,
    *,
    samples: int,
    sequence_length: int,
    device: torch.device | str = "cpu",
) -> float:
    """Loss of a checkpoint in nats per token on fixed validation windows of `corpus`, at most
    `samples`.

    Raises `DataError` when data and checkpoint have different tokenizers.
    """
    checkpoint = load_checkpoint(directory, device)
    if checkpoint.tokenizer.to_json() != corpus.manifest.tokenizer:
        raise DataError(
            f"{corpus.directory}: expected the tokenizer of {directory}, got another; prepare it with that"
        )
    return TrainingModel(checkpoint.model, device).evaluate(
        corpus.validation(samples, sequence_length)
    )


def generate(
    directory: Path,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[str]:
    """Continues `prompt` with the checkpoint in `directory`, piece by piece as the text becomes
    certain.

    Ends at a document end or after `max_tokens`. temperature 0 takes the likeliest token each time;
    else tokens are drawn by `seed`. Raises as `load_checkpoint` does."""
    checkpoint = load_checkpoint(directory, device)
    tokenizer = checkpoint.tokenizer
    tokens = [
        tokenizer.document_end,
        *tokenizer.encode(prompt).tolist(),
    ]  # every document followed another's end
    written = ""
    fresh: list[int] = []
    for token in islice(_continuation(checkpoint.model, tokens, temperature, seed), max_tokens):
        if token == tokenizer.document_end:
            break
        fresh.append(token)
        text = tokenizer.decode(fresh)
        if not text.endswith("\ufffd"):  # else the next token may complete the character
            yield text[len(written) :]
            written = text
    if rest := tokenizer.decode(fresh)[len(written) :]:
        yield rest


def save_parameters(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Replaces the file `path` by `tensors` of any dtype and JSON values `metadata`, forced to
    disk.

    Raises `StorageError` when the disk is full; the older file is still there then.
    """
    bytes_needed = sum(tensor.nbytes for tensor in tensors.values())
    with replacing_file(path, bytes_needed) as temporary, _safetensors_errors(path, bytes_needed):
        save_file(
            _apart(tensors), temporary, {_METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)}
        )


def load_parameters(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_parameters` wrote; `StorageError` when the file is missing or damaged."""
    if not path.is_file():
        raise StorageError(f"expected saved parameters in {path}, found none")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = json.loads((file.metadata() or {})[_METADATA_KEY])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise StorageError(f"{path} is damaged: expected saved parameters: {error!r}") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors of which no two share memory, which safetensors refuses; most are not
    copied."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        held = tensor.detach().contiguous()
        storage = held.untyped_storage().data_ptr()
        apart[name] = held.clone() if storage in storages else held
        storages.add(storage)
    return apart


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


def _about(path: Path) -> dict[str, Any]:
    """The fields of `lockstep.json`, checked."""
    if not path.is_file():
        raise DataError(f"{path.parent}: expected a checkpoint with {ABOUT_NAME}, found none")
    with storage_errors(path):
        size = path.stat().st_size
        if size > ABOUT_BYTES_MAX:
            raise StorageError(f"{path}: expected at most {ABOUT_BYTES_MAX:,} bytes, got {size:,}")
        blob = path.read_bytes()
    try:
        about = json.loads(blob)
    except ValueError as error:
        raise StorageError(f"{path} is damaged: expected JSON: {error}") from error
    match about:
        case {"version": 1, "tokenizer": dict(), "metadata": dict()}:
            checked: dict[str, Any] = about
            return checked
        case {"version": version} if version != CHECKPOINT_VERSION:
            raise VersionError(f"{path}: expected version {CHECKPOINT_VERSION}, got {version!r}")
    raise StorageError(f"{path} is damaged: expected version, tokenizer and metadata")


@contextmanager
def _safetensors_errors(path: Path, bytes_needed: int) -> Iterator[None]:
    """safetensors reports a full disk in its own type, and a serialization error is nothing else
    here."""
    try:
        yield
    except SafetensorError as error:
        raise StorageError(
            f"cannot write {path}, which needs {bytes_needed:,} bytes: {error}; free some space there"
        ) from error


@torch.no_grad()
def _continuation(
    model: nn.Module, tokens: list[int], temperature: float, seed: int
) -> Iterator[int]:
    """Tokens after `tokens`, without end.

    What a model that keeps keys and values has read, it does not read again. When the text outgrows
    the positions the model knows, the older half of them is dropped and the rest read anew."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    longest = getattr(model.config, "max_position_embeddings", None) or 4096
    read, cache = 0, None
    while True:
        if len(tokens) > longest:
            tokens, read, cache = tokens[-max(1, longest // 2) :], 0, None
        unread = torch.tensor([tokens[read:]], device=device)
        known: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
        output = model(input_ids=unread, use_cache=True, **known)
        cache = getattr(output, "past_key_values", None)
        read = 0 if cache is None else len(tokens)
        token = _drawn(output.logits[0, -1].float().cpu(), temperature, generator)
        yield token
        tokens = [*tokens, token]


def _drawn(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """One token from logits, float32 [vocabulary]."""
    if temperature <= 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
