"""`lockstep data prepare`: turns text into shards, with a progress bar and a summary."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.console import output, progress
from lockstep.exit_codes import UsageError
from node.data.prepare import prepare_builtin, prepare_from

BUILTIN = "builtin"
"""Name of the source that every machine has: the Python standard library."""


def prepare(sources: Sequence[str], out: Path, tokenizer: str) -> None:
    """Prepares `sources` into `out` and prints a summary; a finished directory is left as it is.

    Raises `UsageError` for the built-in corpus with other sources or another tokenizer; other
    errors are those of `node.data.prepare`.
    """
    with progress("preparing", "tokens") as advance:

        def report(documents: int, tokens: int) -> None:
            advance(tokens, None)

        if BUILTIN not in sources:
            manifest = prepare_from(sources, out, tokenizer, progress=report)
        elif len(sources) == 1 and tokenizer == "bytes":
            manifest = prepare_builtin(out, progress=report)
        else:
            raise UsageError(
                f"expected {BUILTIN} alone and with the tokenizer bytes, got {' '.join(sources)} "
                f"with {tokenizer}"
            )
    for split in manifest.splits:
        output.print(
            f"{split}: {manifest.documents[split]:,} documents, {manifest.tokens(split):,} tokens"
        )
    output.print(
        f"vocabulary: {manifest.vocabulary_size:,}\nmanifest_sha256: {manifest.digest.hex()}"
    )
