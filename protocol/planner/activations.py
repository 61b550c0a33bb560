"""The memory of a pass in float32, by arithmetic, for the types whose layout is written down.

    pass = kept + the larger of (loss, way back through one block)
    kept   what every block keeps for the way back; where blocks are computed again what each of
           them takes, and on the way back all that one of them keeps
    loss   logits and what is made of them: whole, or by pieces where they are many

The counts below are of values for each token, in multiples of the model's width. They were read off
torch's profile of memory, of models that differ in one size; docs/results/memory.md has whole ones.
An accelerator that computes in bfloat16 takes less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.planner.parameters import Fields
from protocol.runfile import ModelSpec

FLOAT_BYTES: Final = 4

PIECE_ENTRIES: Final = 8 * 2**20
"""Logits that stand at once: 32 MiB in float32, and as much for their logarithms. A pass without
more is made whole, where the head has no more entries either. On one core, 2048 tokens with a
vocabulary of 50,257 took pieces of 4, 8 and 12 million entries the time of the whole pass, and
pieces of one million 1.6 times as long."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of a model."""

    width: int
    layers: int
    kept: float
    """Values that a block keeps for each token, in multiples of the width."""
    back: float
    """Values that its way back takes besides."""
    vocabulary: int


def pass_bytes(model: ModelSpec, samples: int, length: int, *, recomputes: bool = False) -> int:
    """The memory that a forward and backward pass takes beside parameters and gradients: `samples`
    of `length` tokens, blocks computed again or not. 0 for a type that is not written down.
    """
    blocks_of = _BLOCKS.get(model.type)
    if blocks_of is None:
        return 0
    blocks, tokens = blocks_of(Fields(model.config), length), samples * length
    kept = blocks.layers * (1 if recomputes else blocks.kept) + 1
    back = blocks.back + 1 + recomputes * blocks.kept
    value_bytes = FLOAT_BYTES * tokens * blocks.width
    loss_bytes = _loss_bytes(tokens, blocks.width, blocks.vocabulary)
    return int(kept * value_bytes + max(back * value_bytes, loss_bytes))


def _loss_bytes(tokens: int, width: int, vocabulary: int) -> int:
    """By pieces logits and their logarithms, and the gradient of what the head takes; else the
    gradient of the logits too, and the head's.
    """
    if vocabulary * max(tokens, width) > PIECE_ENTRIES:
        return FLOAT_BYTES * (2 * min(PIECE_ENTRIES, tokens * vocabulary) + tokens * width)
    return FLOAT_BYTES * (3 * tokens + width) * vocabulary


def _llama(fields: Fields, length: int, kv_heads: int | None = None) -> _Blocks:
    """Two norms, queries, attention, its result: 8; keys and values; four of the inner width."""
    width = fields.count("hidden_size", 4096)
    heads = fields.count("num_attention_heads", 32)
    keys = fields.count("num_key_value_heads", kv_heads or heads) / heads
    inner = fields.count("intermediate_size", 11008) / width
    layers = fields.count("num_hidden_layers", 32)
    vocabulary = fields.count("vocab_size", 32000)
    return _Blocks(width, layers, 8 + 2 * keys + 4 * inner, 2 * inner, vocabulary)


def _mistral(fields: Fields, length: int) -> _Blocks:
    return _llama(fields, length, 8)


def _qwen2(fields: Fields, length: int) -> _Blocks:
    return _llama(fields, length, 32)


def _gpt2(fields: Fields, length: int) -> _Blocks:
    """An approximate GELU keeps five of the inner width; where weights of attention drop out they
    stand whole, three times.
    """
    width, heads = fields.count("n_embd", 768), fields.count("n_head", 12)
    inner = fields.count("n_inner", 4 * width) / width
    kept = 8 + 5 * inner
    if fields.is_positive("resid_pdrop", default=True):
        kept += 1.75
    if fields.is_positive("attn_pdrop", default=True):
        kept += 3 * heads * length / width
    layers, vocabulary = fields.count("n_layer", 12), fields.count("vocab_size", 50257)
    return _Blocks(width, layers, kept, 2 * inner, vocabulary)


def _gpt_neox(fields: Fields, length: int) -> _Blocks:
    """An exact GELU keeps two of the inner width."""
    width, layers = fields.count("hidden_size", 6144), fields.count("num_hidden_layers", 44)
    inner = fields.count("intermediate_size", 24576) / width
    vocabulary = fields.count("vocab_size", 50432)
    return _Blocks(width, layers, 10 + 2 * inner, inner, vocabulary)


_BLOCKS: Final[Mapping[str, Callable[[Fields, int], _Blocks]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
