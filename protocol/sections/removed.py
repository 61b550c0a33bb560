"""Fields that a run file had once, and what a file that still has one of them is told."""

from typing import Any, Final

REMOVED_FIELDS: Final = {
    "algorithm.alpha": "all that is sent leaves the momentum, which trained best",
    "algorithm.early_rounds": "top_k is that of every round, which ended no worse",
    "algorithm.early_top_k": "top_k is that of every round, which ended no worse",
    "algorithm.gradients": "gradients enter the momentum as they come",
    "algorithm.recency": "momentum_decay holds from the first round on",
    "algorithm.update": "every parameter moves by the sign of its votes",
    "algorithm.vote_rounds": "a step is made of its own round's votes",
    "algorithm.vote_rounds_from": "a step is made of its own round's votes",
    "membership.warmup_rounds": "a newcomer's payloads count from its first round on",
    "rounds.overlap_from": "with overlap 1 every round overlaps but those of audit_every",
}
"""Paths of the fields, each with what holds in their place. Why: docs/results."""


def removed_text(path: str, found: Any) -> str | None:
    """Why a field that was removed is wrong; None for every other field."""
    if (holds := REMOVED_FIELDS.get(path)) is None:
        return None
    return f"expected no such field any more ({holds}), got {found!r}; remove the line"
