"""`lockstep data prepare` turns text into shards, with a progress bar and a summary; `publish` puts
them at a URL.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from lockstep.console import messages, output, progress
from lockstep.exit_codes import UsageError
from node.data.documents import Remarks
from node.data.prepare import prepare_builtin, prepare_from
from node.data.publish import publish as publish_corpus
from protocol.addresses import PUBLISHED_URL
from protocol.words import quantity

BUILTIN = "builtin"
"""Name of the source that every machine has (`node.data.builtin`)."""


def prepare(sources: Sequence[str], out: Path, tokenizer: str) -> None:
    """Prepares `sources` into `out` and prints a summary; a finished directory is left as it is.

    Raises `UsageError` for the built-in corpus with other sources or another tokenizer; other
    errors are those of `node.data.prepare`.
    """
    remarks = Remarks()
    with progress("preparing", "tokens") as advance:

        def report(documents: int, tokens: int) -> None:
            advance(tokens, None)

        if BUILTIN not in sources:
            manifest = prepare_from(
                sources, out, tokenizer, progress=report, learning=_say_learning, report=remarks
            )
        elif len(sources) == 1 and tokenizer == "bytes":
            manifest = prepare_builtin(out, progress=report)
        else:
            raise UsageError(
                f"expected {BUILTIN} alone and with the tokenizer bytes, got {' '.join(sources)} "
                f"with {tokenizer}"
            )
    _print_remarks(remarks)
    for split in manifest.splits:
        output.print(
            f"{split}: {quantity(manifest.documents[split], 'document')}, "
            f"{quantity(manifest.tokens(split), 'token')}"
        )
    output.print(
        f"vocabulary: {manifest.vocabulary_size:,}\nmanifest_sha256: {manifest.digest.hex()}"
    )


def publish(directory: Path, url: str) -> None:
    """Copies the corpus in `directory` to `url` and prints the lines for the run file.

    Errors are those of `node.data.publish`.
    """
    with progress("publishing", "files") as advance:
        manifest = publish_corpus(directory, url, advance)
    read_at = url if re.fullmatch(PUBLISHED_URL, url) else "https://..."
    output.print(
        f"published to {url}; in the run file, with the address at which nodes can read it:\n\n"
        f'[data]\ncorpus = "NAME"\nurl = "{read_at}"\n'
        f'manifest_sha256 = "{manifest.digest.hex()}"',
        soft_wrap=True,
        markup=False,
    )


def _say_learning(words: str) -> None:
    messages.print(f"tokenizer {words}")


def _print_remarks(remarks: Remarks) -> None:
    """What was passed over or changed: the first cases with their reason, and the count of all."""
    for name, reason in remarks.shown:
        messages.print(f"{name!r}: {reason}", soft_wrap=True)
    if remarks.count:
        more = remarks.count - len(remarks.shown)
        rest = f", {more:,} of them not shown" if more else ""
        messages.print(f"remarks: {remarks.count:,}{rest}")
