"""`lockstep run audit`: checks the chain of the operator's acts, and prints them."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from coordinator.act_log import ActLog, read_acts
from coordinator.journal import JOURNAL_NAME
from coordinator.machine.events import acts
from lockstep.commands.run.orders import moment
from lockstep.commands.run.place import any_here
from lockstep.console import output, write_json
from lockstep.service.directory import pid_at_work
from lockstep.service.journal_copy import readable_journal
from lockstep.service.order_socket import Look, send
from protocol.border.text import clean
from protocol.codec.evidence import read_evidence
from protocol.errors import SettingsError, StorageError
from protocol.ids import Digest
from protocol.sums.signed import WRONG_SUM

DIGEST_SHOWN = 16
"""Characters of a digest in the list."""

PREFIX_MIN = 8
"""Characters of a digest that somebody kept, at least."""


def audit(directory: Path | None, kept: str, json_path: str | None) -> None:
    """Prints the acts of a run whose chain is sound; `StorageError` says which act was changed.
    `kept` is the beginning of a digest that somebody kept: it must be among them.
    """
    place = any_here(directory)
    known = None if pid_at_work(place) is None else send(place, Look())["document"]["audit"]
    with readable_journal(place / JOURNAL_NAME) as journal:
        log = read_acts(journal)
    digests = [acts.first_digest(log.run_id), *(each.digest for each in log.acts)]
    if known and digests[known["acts"] : known["acts"] + 1] != [bytes.fromhex(known["head"])]:
        raise StorageError(
            f"{place}: the coordinator at work knows {known['acts']} acts up to "
            f"{known['head'][:DIGEST_SHOWN]}, the journal has {len(log.acts)} up to "
            f"{log.head.hex()[:DIGEST_SHOWN]}: it was changed"
        )
    if kept:
        _require_kept(digests, kept)
    if json_path is not None:
        write_json(json_path, _document(log))
    if json_path == "-":
        return
    for number, each in enumerate(log.acts, 1):
        output.print(
            f"{number:4d}  {moment(each.given_s)}  {each.digest.hex()[:DIGEST_SHOWN]}  "
            f"{clean(acts.words(each.act), acts.NOTICE_MAX)}",
            soft_wrap=True,
        )
    if found := verdicts(log):
        named = ", ".join(f"{count} for {finding}" for finding, count in found.items())
        output.print(f"lost their standing by an auditor's evidence: {named}", soft_wrap=True)
    count = "1 act" if len(log.acts) == 1 else f"{len(log.acts)} acts"
    output.print(f"sound: {count}; the newest digest: {log.head.hex()}", soft_wrap=True)


def verdicts(log: ActLog) -> Counter[str]:
    """How often a key has lost its standing, by what was found."""
    demotions = (each.act for each in log.acts if isinstance(each.act, acts.Demote))
    found = Counter[str](read_evidence(act.body).finding for act in demotions)
    wrong = sum(isinstance(each.act, acts.Refute) for each in log.acts)
    return found + Counter({WRONG_SUM: wrong})


def _require_kept(digests: list[Digest], kept: str) -> None:
    if len(kept) < PREFIX_MIN:
        raise SettingsError(
            f"--kept: expected the first {PREFIX_MIN} or more characters of a digest, found "
            f"{kept!r}"
        )
    if not any(digest.hex().startswith(kept.lower()) for digest in digests):
        raise StorageError(
            f"expected an act with the digest {kept}, found none among {len(digests) - 1}: acts "
            "were cut off or written anew, or the digest is of another run"
        )


def _document(log: ActLog) -> dict[str, Any]:
    rows = [
        {
            "number": number,
            "given_s": each.given_s,
            "digest": each.digest.hex(),
            "words": acts.words(each.act),
            "act": msgspec.to_builtins(each.act),
        }
        for number, each in enumerate(log.acts, 1)
    ]
    document = {"run_id": log.run_id, "acts": rows, "head": log.head.hex()}
    return {**document, "verdicts": dict(verdicts(log))}
