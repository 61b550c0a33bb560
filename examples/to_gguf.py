"""Writes a checkpoint of a llama as one GGUF file, for llama.cpp and programs that build on it.

    pip install gguf
    python examples/to_gguf.py CHECKPOINT model.gguf

Needs the package gguf besides the extra `node`. Tensors stay float32; llama.cpp's own
`llama-quantize` makes smaller ones. The tokenizer is a byte-level BPE, which llama.cpp reads as
that of GPT-2; this file names it itself, so that no table of known tokenizers is asked.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

NEVER = "ÿ ÿ"
"""A merge of two bytes 0xFF, which no UTF-8 text holds: readers want at least one merge, and a
tokenizer of bytes has none."""

Matrix = npt.NDArray[np.float32]


def main(checkpoint: Path, target: Path) -> None:
    """Converts a checkpoint directory to the file `target`."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        sys.exit(f"expected a llama, found {config['model_type']}: use llama.cpp's own converter")
    writer = gguf.GGUFWriter(target, "llama")
    describe(writer, config, checkpoint)
    add_tokenizer(writer, config, checkpoint)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in sorted(load_file(checkpoint / "model.safetensors").items()):
        heads = config["num_attention_heads"] if ".q_proj." in name else 0
        heads = config["num_key_value_heads"] if ".k_proj." in name else heads
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            sys.exit(f"expected tensors of a llama, found {name}")
        writer.add_tensor(known, paired(tensor, heads) if heads else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"wrote {target}")


def describe(writer: gguf.GGUFWriter, config: dict[str, Any], checkpoint: Path) -> None:
    """The sizes of the model, and where it comes from."""
    about = checkpoint / "lockstep.json"
    metadata = json.loads(about.read_text(encoding="utf-8"))["metadata"] if about.exists() else {}
    writer.add_name(str(metadata.get("name") or checkpoint.name))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(head_size)
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer: gguf.GGUFWriter, config: dict[str, Any], checkpoint: Path) -> None:
    """The tokenizer: every token by its number, the merges, and the end of a text."""
    document = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in document["added_tokens"]}
    tokens = {number: token for token, number in document["model"]["vocab"].items()} | special
    count = config["vocab_size"]
    unused = gguf.TokenType.UNUSED
    kinds = [gguf.TokenType.CONTROL if n in special else gguf.TokenType.NORMAL for n in tokens]
    known = dict(zip(tokens, kinds, strict=True))
    merges = document["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(n, f"[unused {n}]") for n in range(count)])
    writer.add_token_types([known.get(n, unused) for n in range(count)])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges] or [NEVER]
    )
    end = max(special)
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)


def paired(weight: Matrix, heads: int) -> Matrix:
    """Rows of a query or key projection [heads * size, width] in the order of llama.cpp.

    transformers turns row i of a head together with row i + size / 2, llama.cpp row 2 i together
    with row 2 i + 1.
    """
    size = weight.shape[0] // heads
    halves = weight.reshape(heads, 2, size // 2, -1)
    return np.ascontiguousarray(halves.transpose(0, 2, 1, 3).reshape(weight.shape))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
