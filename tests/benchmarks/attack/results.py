"""What the study keeps, and the rows that it comes to."""

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from node.system.files import replacing_file
from tests.benchmarks.attack.cases import (
    AIM_NATS,
    ATTACKS,
    AUDIT_BUDGET,
    AUTHORS,
    DELAY_ROUNDS,
    HOSTILE,
    LOCAL_STEPS,
    PARAMETERS,
    PREDICTIONS,
    RATE,
    ROUNDS,
    TASK,
    TOP_K,
    Attack,
    Case,
    Defence,
)
from tests.benchmarks.attack.trial import Result
from tests.benchmarks.parity.comparison import Difference

DEFENCES: tuple[Defence, ...] = ("unbounded", "reach", "median", "audited")


def record_of(result: Result) -> dict[str, Any]:
    """A result as plain values."""
    found = asdict(result)
    return found.pop("case") | found


def result_of(record: dict[str, Any]) -> Result:
    """The result that was kept. `KeyError` for a record of something else."""
    case = Case(*(record[name] for name in ("attack", "hostile", "defence", "seed")))
    removed = {int(author): (found[0], found[1]) for author, found in record["removed"].items()}
    audits = [(number, author, share) for number, author, share in record["audits"]]
    nats, failure, seconds = (record[name] for name in ("nats_per_byte", "failure", "seconds"))
    return Result(case, nats, failure, removed, audits, seconds)


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the whole file or nothing: what the cases come to, and each case in a line."""
    text = json.dumps(summed_up(results), indent=1).removesuffix("\n}")
    lines = [json.dumps(record_of(each), separators=(",", ":")) for each in results]
    cases = ",\n".join(lines)
    blob = f'{text},\n "cases": [\n{cases}\n ]\n}}\n'.encode()
    with replacing_file(path, len(blob)) as temporary:
        temporary.write_bytes(blob)


def read(path: Path) -> list[Result]:
    """The cases of a file; none if it does not exist."""
    if not path.exists():
        return []
    return [result_of(record) for record in json.loads(path.read_bytes())["cases"]]


def summed_up(results: Sequence[Result]) -> dict[str, Any]:
    """Settings, predictions, and what the cases come to."""
    return {
        "settings": {
            "authors": AUTHORS,
            "rounds": ROUNDS,
            "local_steps": LOCAL_STEPS,
            "top_k": TOP_K,
            "learning_rate": RATE,
            "layers": TASK.layers,
            "hidden": TASK.hidden,
            "parameters": PARAMETERS,
            "sequence_length": TASK.sequence_length,
            "batch_samples": TASK.batch_samples,
            "validation_samples": TASK.validation_samples,
            "audit_budget": AUDIT_BUDGET,
            "delay_rounds": DELAY_ROUNDS,
            "aim_nats": AIM_NATS,
        },
        "machine": f"{platform.machine()} CPU, one thread, torch {torch.__version__}",
        "predictions": " ".join(PREDICTIONS.split()),
        "rows": rows(results),
        "agreement": agreement(results),
    }


def rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One row for each attack, number of attackers and defence that has a case beside its clean
    one.
    """
    by_case = {each.case: each for each in results}
    found = []
    for attack in ATTACKS:
        for hostile in sorted(HOSTILE):
            for defence in DEFENCES:
                pairs = _pairs(by_case, attack, hostile, defence)
                if pairs:
                    found.append(_row(pairs))
    return found


def _pairs(
    by_case: dict[Case, Result], attack: Attack, hostile: int, defence: Defence
) -> list[tuple[Result, Result]]:
    """Attacked and clean results of one row, by seed."""
    there = [
        each
        for case, each in by_case.items()
        if (case.attack, case.hostile, case.defence) == (attack, hostile, defence)
        and case.clean in by_case
    ]
    ordered = sorted(there, key=lambda each: each.case.seed)
    return [(each, by_case[each.case.clean]) for each in ordered]


def _row(pairs: Sequence[tuple[Result, Result]]) -> dict[str, Any]:
    case = pairs[0][0].case
    row: dict[str, Any] = {"attack": case.attack, "hostile": case.hostile, "defence": case.defence}
    row["seeds"] = [attacked.case.seed for attacked, _ in pairs]
    row["blew_up"] = sum(attacked.nats_per_byte is None for attacked, _ in pairs)
    ends = [
        (attacked.nats_per_byte, clean.nats_per_byte)
        for attacked, clean in pairs
        if attacked.nats_per_byte is not None and clean.nats_per_byte is not None
    ]
    if ends:
        row |= _ends([end for end, _ in ends], [clean for _, clean in ends])
    if case.defence == "audited":
        row |= _removals([attacked for attacked, _ in pairs])
    return row


def _ends(attacked: Sequence[float], clean: Sequence[float]) -> dict[str, Any]:
    difference = Difference(tuple(a - c for a, c in zip(attacked, clean, strict=True)))
    interval = difference.interval
    return {
        "nats_per_byte": round(fmean(attacked), 4),
        "clean_nats_per_byte": round(fmean(clean), 4),
        "behind": {
            "mean": round(difference.mean, 4),
            "least": round(min(difference.by_seed), 4),
            "most": round(max(difference.by_seed), 4),
            "ci95": None if interval is None else round(interval[1] - difference.mean, 4),
        },
    }


def _removals(attacked: Sequence[Result]) -> dict[str, Any]:
    gone = [found for each in attacked for found in each.removals(hostile=True)]
    return {
        "attackers": sum(each.case.hostile for each in attacked),
        "removed": len(gone),
        "rounds": median(found[0] for found in gone) if gone else None,
        "audits": median(audits for _, audits in gone) if gone else None,
        "honest_removed": sum(len(each.removals(hostile=False)) for each in attacked),
        "honest_audits": sum(len(each.shares(hostile=False)) for each in attacked),
    }


def agreement(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Least, median and most of the shares of signs that agree, by kind of author."""
    found: dict[str, list[float]] = {}
    for each in results:
        found.setdefault("honest", []).extend(each.shares(hostile=False))
        found.setdefault(each.case.attack, []).extend(each.shares(hostile=True))
    return {
        kind: {
            "audits": len(shares),
            "least": round(min(shares), 4),
            "median": round(median(shares), 4),
            "most": round(max(shares), 4),
        }
        for kind, shares in found.items()
        if shares
    }
