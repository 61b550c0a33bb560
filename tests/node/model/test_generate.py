"""Promises of text from a checkpoint."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from node.data.tokenizer import ByteTokenizer
from node.model.generate import generate
from tests.support.checkpoints import TINY, saved_checkpoint

torch.set_num_threads(1)


@pytest.mark.parametrize("model_type", TINY)
def test_the_likeliest_text_is_what_reading_everything_anew_gives(
    tmp_path: Path, model_type: str
) -> None:
    model = saved_checkpoint(tmp_path / "checkpoint", model_type).eval()
    tokens, expected = [256, *b"def "], []
    for _ in range(20):  # stays within the 32 positions
        token = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        if token == 256:
            break
        tokens.append(token)
        expected.append(token)
    pieces = list(generate(tmp_path / "checkpoint", "def ", max_tokens=20, temperature=0))
    assert "".join(pieces) == ByteTokenizer().decode(expected)


@pytest.mark.parametrize("model_type", TINY)
def test_text_goes_on_beyond_the_positions_the_model_knows(tmp_path: Path, model_type: str) -> None:
    saved_checkpoint(tmp_path / "checkpoint", model_type)
    text = "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=2))
    again = "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=2))
    assert text == again
    assert text != "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=3))


def test_an_empty_prompt_begins_a_document(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    assert list(generate(tmp_path / "checkpoint", "", max_tokens=0)) == []
    assert "".join(generate(tmp_path / "checkpoint", "", max_tokens=5, temperature=0)) != ""


def test_text_streams_in_whole_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    tokens = [*"aé🙂".encode(), 0xC3, 256, 98]

    def scripted(
        self: Any, context: Tensor, *, max_new_tokens: int, streamer: Any, **_: Any
    ) -> None:
        streamer.put(context)
        for token in tokens[:max_new_tokens]:
            streamer.put(torch.tensor([token]))
        streamer.end()

    monkeypatch.setattr("transformers.LlamaForCausalLM.generate", scripted)
    assert list(generate(tmp_path / "checkpoint", "")) == ["a", "é", "🙂", "\ufffd"]
    assert "".join(generate(tmp_path / "checkpoint", "", max_tokens=3)) == "aé"


def test_a_reader_that_goes_away_ends_the_generation(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    pieces = generate(tmp_path / "checkpoint", "def ", max_tokens=10**6, seed=1)
    next(pieces)
    pieces.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "generate"]


def test_an_error_inside_the_generation_reaches_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, *_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    saved_checkpoint(tmp_path / "checkpoint")
    monkeypatch.setattr("transformers.LlamaForCausalLM.generate", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(generate(tmp_path / "checkpoint", "def "))
