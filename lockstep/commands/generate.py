"""`lockstep generate DIR`: text from a checkpoint, as it comes."""

import sys
from pathlib import Path

from node.model.generate import generate


def print_text(
    checkpoint: Path, prompt: str, *, max_tokens: int, temperature: float, seed: int
) -> None:
    """Writes the prompt and what the model adds to it to standard output, piece by piece."""
    sys.stdout.write(prompt)
    for piece in generate(
        checkpoint, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed
    ):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
