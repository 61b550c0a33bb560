"""Text from a published checkpoint, piece by piece: transformers' own generation, streamed.

transformers pushes tokens into a streamer from within `model.generate`, so generation runs in a
thread of its own and the pieces of text travel through a queue.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from node.data.tokenizer import Tokenizer
from node.model.checkpoint import Checkpoint, load_checkpoint

POSITIONS_IF_UNKNOWN = 4096
"""Context length, in tokens, of a model that names none (state-space models)."""


class _AbandonedError(Exception):
    """Nobody reads the text any more."""


class _CharacterStreamer:
    """A transformers streamer that passes text on as soon as its characters are complete.

    A token may end in the middle of a UTF-8 character; such text waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, pieces: "SimpleQueue[str | Exception | None]") -> None:
        self._tokenizer, self._pieces = tokenizer, pieces
        self._prompt_is_next = True
        self._written = ""
        self.tokens: list[int] = []
        self.ended = False
        self.abandoned = False

    def put(self, value: Tensor) -> None:
        if self.abandoned:
            raise _AbandonedError
        if self._prompt_is_next:
            self._prompt_is_next = False
            return
        for token in value.reshape(-1).tolist():
            self.ended = self.ended or token == self._tokenizer.document_end
            if not self.ended:
                self.tokens.append(token)
                self._pass_on()

    def end(self) -> None:
        self._prompt_is_next = True

    def finish(self) -> None:
        """Pass on what is left, complete or not."""
        self._pass_on(incomplete=True)
        self._pieces.put(None)

    def _pass_on(self, *, incomplete: bool = False) -> None:
        text = self._tokenizer.decode(self.tokens)
        if len(text) > len(self._written) and (incomplete or not text.endswith("\ufffd")):
            self._pieces.put(text[len(self._written) :])
            self._written = text


def generate(
    directory: Path,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[str]:
    """Continues `prompt` with the checkpoint in `directory`, piece by piece.

    The text ends at a document end or after `max_tokens`. temperature 0 takes the likeliest token
    each time; otherwise tokens are drawn with `seed`. Raises as `load_checkpoint` does.
    """
    checkpoint = load_checkpoint(directory, device)
    pieces: SimpleQueue[str | Exception | None] = SimpleQueue()
    streamer = _CharacterStreamer(checkpoint.tokenizer, pieces)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def run() -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                _continue(checkpoint, prompt, max_tokens, sampling, streamer)
            streamer.finish()
        except _AbandonedError:
            pass
        except Exception as error:  # raised again where the text is read
            pieces.put(error)

    thread = threading.Thread(target=run, name="generate", daemon=True)
    thread.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        streamer.abandoned = True
        thread.join()


def _continue(
    checkpoint: Checkpoint,
    prompt: str,
    max_tokens: int,
    sampling: dict[str, Any],
    streamer: _CharacterStreamer,
) -> None:
    """Generate at most `max_tokens` tokens, over as many contexts as they need.

    When the text fills the positions that the model knows, its older half is dropped and the rest
    is read again.
    """
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    config: Any = model.config
    longest = getattr(config, "max_position_embeddings", None) or POSITIONS_IF_UNKNOWN
    # Every document of the training data followed the end of another one.
    prompt_tokens = [tokenizer.document_end, *tokenizer.encode(prompt).tolist()]
    while len(streamer.tokens) < max_tokens and not streamer.ended:
        context = prompt_tokens + streamer.tokens
        if len(context) >= longest:
            context = context[-max(1, longest // 2) :]
        room = min(max_tokens - len(streamer.tokens), max(1, longest - len(context)))
        model.generate(  # type: ignore[operator]
            torch.tensor([context], device=next(model.parameters()).device),
            attention_mask=torch.ones(1, len(context), dtype=torch.long),
            max_new_tokens=room,
            eos_token_id=tokenizer.document_end,
            pad_token_id=tokenizer.document_end,
            streamer=streamer,
            **sampling,
        )
