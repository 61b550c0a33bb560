"""Links between nodes as they were measured, from a file: `lockstep plan --matrix`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import SettingsError
from protocol.planner.links import HomeLine, Network

NODES_MAX = 256
"""Nodes that are planned for at most: waiting is drawn for each of them."""

Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Delay = Annotated[float, Field(ge=0, le=100_000)]


class _MatrixFile(BaseModel):
    """Links between nodes as measured, from the node of the row to that of the column."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    nodes: Annotated[list[str], Field(min_length=1, max_length=NODES_MAX)]
    """Names."""

    mbit_s: list[list[float]]
    """Rates of single transfers. The diagonal counts for nothing."""

    one_way_ms: list[list[Delay]]
    """Delays. The diagonal counts for nothing."""

    up_mbit_s: list[Rate] | None = None
    """Rate of all transfers from a node together. [default: its largest one to another]"""

    down_mbit_s: list[Rate] | None = None
    """Rate of all transfers to a node together."""


def read_matrix(path: Path) -> Network:
    """The network in a JSON file; `SettingsError` names every wrong field."""
    try:
        table = _MatrixFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read links {path}: {error.strerror}") from None
    except ValidationError as error:
        problems = "; ".join(_in_words(dict(problem)) for problem in error.errors())
        raise SettingsError(f"{path}: {problems}") from None
    count = len(table.nodes)
    if len(set(table.nodes)) != count:
        raise SettingsError(f"{path}: nodes: expected names that differ, got {table.nodes}")
    rates = _square(table.mbit_s, count, f"{path}: mbit_s") * 1e6
    delays = _square(table.one_way_ms, count, f"{path}: one_way_ms") / 1000
    np.fill_diagonal(rates, 0.0)
    if count > 1 and not (rates[~np.eye(count, dtype=bool)] > 0).all():
        raise SettingsError(f"{path}: mbit_s: expected rates above 0 between any two nodes")
    up = _rates(table.up_mbit_s, rates.max(axis=1, initial=1.0), f"{path}: up_mbit_s")
    down = _rates(table.down_mbit_s, rates.max(axis=0, initial=1.0), f"{path}: down_mbit_s")
    lines = [
        HomeLine(name, float(up[node]), float(down[node])) for node, name in enumerate(table.nodes)
    ]
    np.fill_diagonal(rates, np.inf)
    return Network(lines, between_bit_s=rates, between_s=delays)


def _square(rows: Sequence[Sequence[float]], count: int, what: str) -> Any:
    lengths = [len(row) for row in rows]
    if lengths != [count] * count:
        raise SettingsError(
            f"{what}: expected {count} rows of {count} numbers, got rows of {lengths}"
        )
    return np.array(rows, float)


def _rates(given: Sequence[float] | None, measured: Any, what: str) -> Any:
    if given is None:
        return measured
    if len(given) != len(measured):
        raise SettingsError(f"{what}: expected {len(measured)} rates, got {len(given)}")
    return np.array(given) * 1e6


def _in_words(problem: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "file"
    if isinstance(problem["input"], bytes):  # the whole file, which is no JSON
        return f"expected JSON: {problem['msg'].lower()}"
    found = json.dumps(problem["input"], default=str)
    return f"{place}: {problem['msg'].lower()}, got {found[:60]}"
