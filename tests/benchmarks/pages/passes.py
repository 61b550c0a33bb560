"""The computed tables of docs/results/pass.md."""

from typing import Any

from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import document

KINDS = ("pass", "pass, computed again")


def memory() -> str:
    """Predicted and measured bytes, by model."""
    rows = []
    for name, found in document("passes.json")["models"].items():
        tokens = f"{found['samples']} x {found['length']}"
        rows.append((name, tokens, *(_beside(found[kind]) for kind in KINDS)))
    head = ("network", "samples x tokens", "a pass adds", "computed again")
    return table(head, rows, left=1)


def ways() -> str:
    """Time and memory of a pass, by its way."""
    rows = [
        (
            "by pieces" if row["pieces"] else "whole",
            "computed again" if row["recomputes"] else "kept",
            f"{row['peak_bytes'] / 1e6:,.0f} MB",
            "{median:.2f} ({least:.2f}-{most:.2f})".format_map(row["ratio"]),
        )
        for row in document("passes.json")["time"]["ways"]
    ]
    return table(("logits", "activations", "memory", "time, ratio (least-most)"), rows, left=2)


def _beside(found: dict[str, Any]) -> str:
    predicted, seen = (found[name] / 1e6 for name in ("predicted_bytes", "bytes"))
    return f"{predicted:,.0f} for {seen:,.0f} MB, {100 * (found['ratio'] - 1):+.0f} %"
