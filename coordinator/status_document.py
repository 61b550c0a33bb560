"""The coordinator's state as a document for people and scripts: /status.json, `lockstep status`."""

import math
from typing import Any

from coordinator.forecast import forecast
from coordinator.journal import RecordedCommit
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import measuring, publishing
from coordinator.machine.rules.demotion import alarm
from coordinator.machine.rules.head_state import held_by_nobody
from coordinator.machine.rules.opening import muted_reason
from coordinator.machine.state.member import Member
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.standing import Demoted
from coordinator.machine.state.votes import DigestTally
from protocol.codec.commits import Commit
from protocol.codec.evidence import WHOLE, WorkAudit, read_evidence
from protocol.ids import PeerId
from protocol.mixing.measured_links import matrix_of
from protocol.sums.signed import WRONG_SUM

COMMITS_SHOWN = 10
"""Newest commits in the document."""

LINKS_SHOWN = 64
"""Members whose links are shown: their number is squared in the document."""

DEMOTED_SHOWN = 8
"""Keys in the document that have lost their standing, those of the newest evidence."""


def status(
    rounds: RunMachine, commits: list[tuple[RecordedCommit, Commit]], now_ms: int
) -> dict[str, Any]:
    """The state of the run; times in seconds, losses in nats per token, digests in hexadecimal."""
    lost = state_lost(rounds, now_ms)
    state, totals, tally = rounds.state, rounds.state.totals, rounds.state.verdicts.tally
    equal_by_design = rounds.spec.algorithm.facts.replicas_equal
    return {
        "run_id": rounds.run_id,
        "name": rounds.spec.name,
        "round": state.undecided[-1].round if state.undecided else state.decided_round,
        "phase": phase(state),
        "reason": lost or state.reason,
        "state_lost": lost,
        "pace": _pace(state) | forecast(rounds),
        "finished": state.end.finished,
        "operator": _operator(state),
        "members": [member_document(rounds, member, now_ms) for member in rounds.members],
        "links": links_document(list(rounds.members)),
        "steps": {
            "committed": totals.committed,
            "skipped": totals.skipped,
            "total": state.schedule(rounds.spec).steps,
        },
        "checkpoint": _checkpoints(state),
        "voids": len(state.voids.made),
        "audit": _audit(state),
        "loss": state.loss,
        "validation": validation(state),
        "last_commits": [_commit(recorded, commit) for recorded, commit in commits],
        "digests": {
            "agreed": tally.agreed,
            "rounds_checked": tally.rounds_checked,
            "rounds_disputed": tally.rounds_disputed,
            "last": _hexadecimal(tally.last),
        },
        "consensus": None if equal_by_design else state.consensus.document(),
        "traffic": {
            "payload_bytes": totals.payload_bytes,
            "payloads": totals.payloads,
            "result_bytes": totals.result_bytes,
        },
        "data": {
            "samples_trained": totals.samples_counted,
            "samples_left_out": totals.samples_left_out,
            "samples_lost": totals.samples_lost,
        },
    }


def phase(state: RunState) -> str:
    """One word for the phase of the run."""
    if state.end.finished:
        return "finished"
    if not state.undecided:
        return "waiting" if state.operator.paused is None else "paused"
    return "computing" if state.undecided[-1].reached == "opened" else "exchanging"


def state_lost(rounds: RunMachine, now_ms: int) -> str:
    """Why the run cannot go on although members wait: no node here holds the state of the log's
    head. Empty otherwise.
    """
    return held_by_nobody(rounds, now_ms)


def standing(rounds: RunMachine, member: Member) -> tuple[str, str]:
    """(State, reason) of a member apart from its work: away, held, catching up, muted, ready."""
    state = rounds.state
    if not member.connected:
        return "away", "its session was lost; it is removed when its lease ends"
    if held := state.verdicts.held.get(member.peer):
        return "held", held
    if member.state == "catching up":
        reason = f"its state holds round {member.round}, the log {state.head_round}"
        return "catching up", reason
    if muted := muted_reason(state.verdicts, rounds.members, member):
        return "muted", muted
    return "ready", "takes part from the next round"


def told_standing(rounds: RunMachine, peer: PeerId) -> tuple[str, str]:
    """(State, reason) for the member itself; empty while it works as it should."""
    member, state = rounds.members.get(peer), rounds.state
    if member is None:
        return "", ""
    own, reason = standing(rounds, member)
    if own != "ready":
        return own, reason
    return ("", "") if state.undecided or state.end.finished else ("waiting", state.reason)


def member_document(rounds: RunMachine, member: Member, now_ms: int) -> dict[str, Any]:
    """One member, as the document shows it."""
    state, reason = standing(rounds, member)
    undecided = rounds.state.undecided[-1] if rounds.state.undecided else None
    if state == "ready" and undecided:
        if member.peer in undecided.announced:
            state, reason = "announced", f"its payload of round {undecided.round} is in"
        elif member.peer in undecided.assignments:
            first = "" if member.work.speed else ", the first that it will announce"
            state, reason = "training", f"computes round {undecided.round}{first}"
    return {
        "peer_id": member.peer,
        "name": member.name,
        "hardware": member.hardware,
        "state": state,
        "reason": reason,
        "round": member.round,
        "standing": standing_word(rounds, member.peer),
        "strikes": member.strikes,
        "remark": rounds.members.remark(member),
        "samples": member.work.samples,
        "samples_per_second": member.work.speed / 1000,
        "up_bit_per_second": member.work.up_bit_s,
        "rounds_counted": member.work.rounds_counted,
        "ranges_added": member.work.ranges_added,
        "loss": member.work.loss,
        "member_seconds": (now_ms - member.joined_ms) // 1000,
    }


def links_document(members: list[Member]) -> dict[str, Any] | None:
    """The links between members as these measure them; null where nothing was measured. None
    before anything was, and with more than `LINKS_SHOWN` members.
    """
    said = {member.peer: member.work.links for member in members}
    if len(said) > LINKS_SHOWN or not any(said.values()):
        return None
    links = matrix_of(said, peers := sorted(said))
    return {
        "peers": peers,
        "round_trip_ms": [[_whole(1000 * one) for one in row] for row in links.round_trip_s],
        "bit_per_second": [[_whole(one) for one in row] for row in links.bit_s],
    }


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def validation(state: RunState) -> dict[str, Any]:
    """The newest validation loss, None before the first, and how the next one stands. `other_data`:
    whether it was measured on other samples than the one before it, so that they do not compare.
    """
    points = state.evaluation.points
    document: dict[str, Any] = {"next": measuring.words(state), "measured": len(points)}
    newest = points[-1] if points else None
    other = len(points) > 1 and points[-2].data_sha256 != points[-1].data_sha256
    return document | {
        "loss": newest.loss if newest else None,
        "round": newest.round if newest else None,
        "step": newest.step if newest else None,
        "samples": newest.samples if newest else None,
        "peer_id": newest.peer if newest else "",
        "name": newest.name if newest else "",
        "other_data": other,
    }


def standing_word(rounds: RunMachine, peer: PeerId) -> str:
    """The standing of a key, in a word; empty where all decide alike."""
    if peer in rounds.members.standing.demoted:
        return "demoted"
    return rounds.members.standing.word(peer) if rounds.members.public else ""


def _checkpoints(state: RunState) -> dict[str, Any]:
    """The published checkpoints, newest first, and how the next one stands."""
    found = state.checkpoints
    return {
        "next": publishing.words(state),
        "where": publishing.place(state),
        "room_bytes": found.room_bytes,
        "made": [
            {
                "name": made.name,
                "round": made.round,
                "step": made.step,
                "state_digest": _hexadecimal(made.state_digest),
                "sha256": made.sha256.hex(),
                "bytes": made.file_bytes,
                "writer": made.writer,
                "writer_name": made.writer_name,
                "confirmed_by": made.confirmed_by,
            }
            for made in reversed(found.made)
        ],
        "published": [
            {"round": each.round, "url": each.url, "peer_id": each.peer, "name": each.name}
            for each in reversed(found.published)
            if each.agreed
        ],
    }


def _operator(state: RunState) -> dict[str, Any]:
    """The operator's orders, as far as they concern everyone."""
    operator = state.operator
    return {
        "paused": operator.paused is not None,
        "finishing": operator.finishing is not None,
        "reason": operator.paused or operator.finishing or "",
        "admission": operator.admission.mode,
        "bans": len(operator.bans),
        "notices": [{"given_s": each.given_s, "text": each.text} for each in operator.notices],
        "newest": [{"given_s": each.given_s, "text": each.text} for each in operator.newest],
        "acts": operator.acts,
        "audit_head": operator.head.hex(),
    }


def _audit(state: RunState) -> dict[str, Any]:
    """The auditors whose word is final, and why the operator should look after them."""
    verdicts = state.verdicts
    return {
        "auditors": [
            {"peer_id": auditor, "round": _newest_word(auditor, verdicts.tally)}
            for auditor in sorted(verdicts.auditors)
        ],
        "alarm": alarm(state),
        "rejected": [
            {"auditor": auditor, "count": len(each.digests), "reason": each.reason}
            for auditor, each in state.operator.rejected.items()
        ],
        "demoted": [_demoted(peer, each) for peer, each in _newest(state.members.standing.demoted)],
    }


def _newest(demoted: dict[PeerId, Demoted]) -> list[tuple[PeerId, Demoted]]:
    return list(demoted.items())[: -DEMOTED_SHOWN - 1 : -1]


def _demoted(peer: PeerId, demoted: Demoted) -> dict[str, Any]:
    """A key that has lost its standing, with the evidence, which anybody can compute again."""
    if demoted.of_sum:
        return {
            "peer_id": peer,
            "finding": WRONG_SUM,
            "auditor": demoted.auditor,
            "reason": demoted.reason,
            "evidence": demoted.evidence.hex(),
        }
    evidence = read_evidence(demoted.evidence)
    return {
        "peer_id": peer,
        "finding": evidence.finding,
        "auditor": demoted.auditor,
        "auditor_key": demoted.public_key.hex(),
        "reason": demoted.reason,
        "spread": evidence.spread / WHOLE,
        "audits": [_audited(audit) for audit in evidence.audits],
    }


def _audited(audit: WorkAudit) -> dict[str, Any]:
    """One payload that evidence names; of a copy with its source."""
    found: dict[str, Any] = {
        "round": audit.round,
        "payload": audit.digest.hex(),
        "agreement": audit.agreement / WHOLE,
        "expected": audit.expected / WHOLE,
        "compared": audit.compared,
        "companions": [
            {
                "peer_id": each.author,
                "payload": each.digest.hex(),
                "agreement": each.agreement / WHOLE,
                "compared": each.compared,
            }
            for each in audit.companions
        ],
    }
    if draw := audit.draw:
        found["draw"] = {"lot": draw.lot.hex(), "share": draw.share / WHOLE}
    if cross := audit.cross:
        found["cross"] = {"differ": cross.differ, "own": cross.own}
    if source := audit.source:
        digest = source.digest.hex()
        found["source"] = {"peer_id": source.author, "round": source.round, "payload": digest}
    return found


def _newest_word(auditor: PeerId, tally: DigestTally) -> int | None:
    rounds = [round for round, reports in tally.by_round.items() if auditor in reports.words]
    return max(rounds, default=None)


def _pace(state: RunState) -> dict[str, Any]:
    """The slot of the next round, in seconds, and the reason why it is not the stated one."""
    slot = state.pace.slot
    parts = (slot.compute_ms / 1000, slot.publish_ms / 1000, slot.exchange_ms / 1000)
    return dict(zip(("compute", "publish", "exchange"), parts, strict=True)) | {
        "reason": state.pace.reason
    }


def _commit(recorded: RecordedCommit, commit: Commit) -> dict[str, Any]:
    return {
        "round": commit.round,
        "step": commit.step,
        "contributors": [entry.author for entry in commit.entries],
        "payload_bytes": sum(entry.payload_bytes for entry in commit.entries),
        "result_bytes": commit.result_bytes,
        "loss": recorded.loss,
        "state_digest": _hexadecimal(recorded.state_digest) if recorded.reports else None,
        "digest_reports": recorded.reports,
        "digests_agree": recorded.dissent == 0,
    }


def _hexadecimal(state_digest: int | None) -> str | None:
    return None if state_digest is None else f"{state_digest:016x}"
