"""The coordinator's state as a document for people and scripts: /status.json, `lockstep status`."""

from typing import Any

from coordinator.journal import RecordedCommit
from coordinator.machine.membership import Member
from coordinator.machine.rounds import Rounds
from protocol.commits import Commit

COMMITS_SHOWN = 10


def status(
    rounds: Rounds, commits: list[tuple[RecordedCommit, Commit]], now_ms: int
) -> dict[str, Any]:
    """Everything an operator asks first; times in seconds, losses in nats per token, digests in
    hexadecimal."""
    return {
        "run_id": rounds.run_id,
        "name": rounds.spec.name,
        "round": rounds.in_flight[-1].round if rounds.in_flight else rounds.decided_round,
        "phase": phase(rounds),
        "reason": rounds.reason,
        "pace": _pace(rounds),
        "finished": rounds.finished,
        "members": [_member(rounds, member, now_ms) for member in rounds.members],
        "steps": {
            "committed": rounds.committed,
            "skipped": rounds.skipped,
            "total": rounds.spec.schedule.steps,
        },
        "loss": rounds.loss,
        "last_commits": [_commit(recorded, commit) for recorded, commit in commits],
        "digests": {
            "agreed": rounds.verdicts.tally.rounds_disputed == 0,
            "rounds_checked": rounds.verdicts.tally.rounds_checked,
            "rounds_disputed": rounds.verdicts.tally.rounds_disputed,
            "last": f"{rounds.verdicts.tally.last:016x}" if rounds.verdicts.tally.last is not None else None,
        },
        "traffic": {"payload_bytes": rounds.payload_bytes, "payloads": rounds.payloads},
        "data": {"samples_trained": rounds.samples_trained, "samples_lost": rounds.samples_lost},
    }


def phase(rounds: Rounds) -> str:
    """One word for where the run is."""
    if rounds.finished:
        return "finished"
    if not rounds.in_flight:
        return "waiting"
    return "computing" if rounds.in_flight[-1].reached == "opened" else "exchanging"


def _member(rounds: Rounds, member: Member, now_ms: int) -> dict[str, Any]:
    muted, held = rounds.muted_reason(member), rounds.verdicts.held.get(member.peer)
    flight = rounds.in_flight[-1] if rounds.in_flight else None
    if not member.connected:
        state, reason = "away", "its session was lost; it is removed when its lease ends"
    elif held:
        state, reason = "held", held
    elif member.state == "catching up":
        state, reason = (
            "catching up",
            f"its state holds round {member.round}, the log {rounds.head_round}",
        )
    elif muted:
        state, reason = "muted", muted
    elif flight and member.peer in flight.announced:
        state, reason = "announced", f"its payload of round {flight.round} is in"
    elif flight and member.peer in flight.assignments:
        state, reason = "training", f"computes round {flight.round}"
    else:
        state, reason = "ready", "takes part from the next round"
    return {
        "peer_id": member.peer,
        "name": member.name,
        "hardware": member.hardware,
        "state": state,
        "reason": reason,
        "round": member.round,
        "strikes": member.strikes,
        "samples": member.samples,
        "samples_per_second": member.speed / 1000,
        "rounds_counted": member.rounds_counted,
        "loss": member.loss,
        "member_seconds": (now_ms - member.joined_ms) // 1000,
    }


def _pace(rounds: Rounds) -> dict[str, Any]:
    """The slot of the next round, in seconds, and why it is not the stated one."""
    slot = rounds.pace.slot
    parts = (slot.compute_ms / 1000, slot.publish_ms / 1000, slot.exchange_ms / 1000)
    return dict(zip(("compute", "publish", "exchange"), parts, strict=True)) | {
        "reason": rounds.pace.reason
    }


def _commit(recorded: RecordedCommit, commit: Commit) -> dict[str, Any]:
    return {
        "round": commit.round,
        "step": commit.step,
        "contributors": [entry.author for entry in commit.entries],
        "payload_bytes": sum(entry.payload_bytes for entry in commit.entries),
        "loss": recorded.loss,
        "state_digest": f"{recorded.state_digest:016x}"
        if recorded.state_digest is not None and recorded.reports
        else None,
        "digest_reports": recorded.reports,
        "digests_agree": recorded.dissent == 0,
    }
