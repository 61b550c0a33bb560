"""The results of an audit of a run's log, and what they say in words."""

from dataclasses import dataclass
from typing import Any

from protocol.words import quantity


@dataclass(slots=True)
class Findings:
    """Results of one audit."""

    run_id: str
    verified: bool = False
    commits: int = 0
    """Number of commits with a valid signature and link."""
    replayed: int = 0
    """Number of commits whose payloads or sums were applied."""
    digests_compared: int = 0
    """Number of rounds whose recorded majority digest equals the replay's."""
    voids: int = 0
    """Number of committed payloads that the chain makes void."""
    restarts: int = 0
    """Number of restarts from a checkpoint in the chain."""
    schedules: int = 0
    """Number of changes of the schedule in the chain, up to the last commit."""
    payload_bytes: int = 0
    began_after: int = -1
    """Round of the snapshot at which the replay began; -1: it began at genesis."""
    round: int = -1
    """Round of the last commit."""
    state_digest: str = ""
    canonical_sha256: str = ""
    checkpoint: str | None = None
    """Verdict on the checkpoint, in words."""
    work_checked: int | None = None
    """Number of audits of work that were computed again, with the result that was published; None:
    it was not asked for."""
    copies_checked: int = 0
    """Number of published copies that were compared again, with the same result."""
    copies_unchecked: int = 0
    """Number of those that the replay did not come by, or whose source it did not."""
    evidence_proven: int = 0
    """Number of published pieces of evidence that prove what they find, by the published rule."""
    replayed_by_sums: int = 0
    """Number of replayed commits with sums: the payloads of their authors did not matter."""
    sums_added: int | None = None
    """Number of ranges that were added again, with the result that the commit names; None: it was
    not asked for."""
    sums_unadded: int = 0
    """Number of ranges that were not, as nobody gave a part of them."""
    first_difference: dict[str, Any] | None = None
    seconds: float = 0.0


def in_words(findings: Findings) -> str:
    """What an audit without a difference has checked, and what it has replayed."""
    first, last = findings.began_after, findings.round
    if first < 0:
        replay = f"all {findings.replayed} were replayed from genesis and lead"
    else:
        replay = (
            f"rounds {first + 1} to {last} ({findings.replayed} commits) were replayed from the "
            f"snapshot of round {first}, whose SHA-256 the members reported, and lead"
            if findings.replayed
            else f"none was replayed: the snapshot of round {first} is of the last, and leads"
        )
    voids = f"; void: {quantity(findings.voids, 'payload')}" if findings.voids else ""
    if findings.restarts:
        voids += f"; the run has gone on from a checkpoint {quantity(findings.restarts, 'time')}"
    if findings.schedules:
        changed = quantity(findings.schedules, "time")
        voids += f"; the operator has changed length or rate {changed}"
    if findings.replayed_by_sums:
        rounds = quantity(findings.replayed_by_sums, "round")
        voids += f"; {rounds} by the sums of members"
        if findings.sums_added is None:
            voids += ", which --sums adds again"
    if findings.sums_added is not None:
        voids += f"; {quantity(findings.sums_added, 'range')} added up to the same again"
    if findings.sums_unadded:
        voids += f", {findings.sums_unadded} were not added, as nobody gave their parts"
    if findings.work_checked is not None:
        voids += f"; {findings.work_checked} audits of work came out as published"
    if findings.copies_checked or findings.copies_unchecked:
        voids += f"; {findings.copies_checked} copies came out as published"
    if findings.copies_unchecked:
        voids += f", {findings.copies_unchecked} were not compared: begin earlier, without --from"
    if findings.evidence_proven:
        voids += f"; {findings.evidence_proven} pieces of evidence prove what they find"
    return (
        f"verified: {findings.commits} commits up to round {last} are signed and linked; {replay} "
        f"to state {findings.state_digest}; members reported the same state in "
        f"{quantity(findings.digests_compared, 'round')}{voids}; "
        f"{findings.checkpoint or 'no checkpoint was compared'}"
    )
