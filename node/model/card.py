"""The model card of a published checkpoint: the run, its length, its people and its digests.

The text is a function of what the coordinator says and of the state, and has no time in it: two
members that write the card of one state write the same.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.run_info import RunInfo

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-!|<>~&:@./])")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts of a card that are not in the run file."""

    round: int
    step: int
    samples: int
    """Trained in the run until then."""
    state_digest: str
    sha256: str
    """SHA-256 of the canonical bytes of the parameters, in hexadecimal."""
    contributors: Sequence[tuple[str, str, int]]
    """(Id, name, samples) of those with the most samples, the most first."""
    contributors_in_all: int
    validation_loss: float | None = None
    """In nats per token; None: not measured."""
    validation_round: int = -1
    """The round after which it was measured."""


def model_card(info: RunInfo, facts: CardFacts) -> str:
    """The card in Markdown, with the head that the Hugging Face hub reads."""
    spec = info.spec
    tokens = facts.samples * spec.data.sequence_length
    loss = ""
    if facts.validation_loss is not None:
        own = facts.validation_round == facts.round
        when = "" if own else f" after round {facts.validation_round}"
        loss = f"| validation loss{when} | {facts.validation_loss:.4f} nats per token |\n"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- lockstep
---

# {_plain(spec.name)}

A causal language model that volunteers trained together with Lockstep, each on a computer of their
own. Every round's payloads are in a signed log: `lockstep verify` replays it to these parameters,
bit for bit.

| | |
| --- | --- |
| run | {info.run_id} |
| model | {_plain(spec.model.type)} |
| data | {_plain(spec.data.corpus)} |
| rounds | up to round {facts.round}, {facts.step + 1:,} steps |
| tokens trained | {tokens:,} |
{loss}| state digest | `{facts.state_digest}` |
| SHA-256 of the parameters | `{facts.sha256}` |

## Contributors

{_contributors(facts, spec.data.sequence_length)}

## Licence

The run's operator says under which licence this model may be used; this card does not.
"""


def _contributors(facts: CardFacts, sequence_length: int) -> str:
    lines = [
        f"- {_plain(name) or 'without a name'} ({peer[:8]}): {samples * sequence_length:,} tokens"
        for peer, name, samples in facts.contributors
    ]
    if more := facts.contributors_in_all - len(lines):
        lines.append(f"- and {more:,} more")
    return "\n".join(lines) or "None is known."


def _plain(text: str) -> str:
    """A stranger's text, so that Markdown shows it as it is."""
    return _MARKUP.sub(r"\\\1", text)
