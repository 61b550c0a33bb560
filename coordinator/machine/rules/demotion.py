"""An auditor's evidence against an author, and what follows from it. Pure.

    evidence of a named auditor --> the author has no standing, gets no work, nothing of it counts
    ... that proves nothing ------> nothing changes; it counts against the auditor: an alarm
    the operator vouches for it --> it has standing again; evidence of earlier rounds counts no more

Whether it proves something the published rule says (`protocol.audit.rule`), which the coordinator
asks before it makes an act of the evidence (`coordinator.service.evidence`). All are acts of the
run's chain (`coordinator.machine.events.acts`). What an auditor that was taken off has found
stays: the evidence can be recomputed by anybody, and the operator judges.
"""

from coordinator.machine.events.acts import Demote, Reject
from coordinator.machine.rules import auditing
from coordinator.machine.state.operator import Rejected
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.standing import Demoted
from protocol.codec.evidence import Evidence, SignedEvidence, open_evidence, words
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, sha256, short

REJECTED_MAX = 16
"""Rejected evidence of one auditor that is put into the chain: then the operator knows enough."""


def objection(act: Demote, run: Run) -> str:
    """Why evidence takes no standing from its author; empty when it does."""
    try:
        auditor, evidence = opened(act)
    except RemoteProtocolError as error:
        return str(error)
    state, standing = run.state, run.members.standing
    newest = evidence.audits[-1].round
    if auditor not in state.verdicts.auditors:
        return f"expected evidence of an auditor of this run, got that of {auditor}"
    if evidence.author in standing.demoted:
        return f"{evidence.author} has lost its standing already"
    if newest > state.head_round:
        return f"expected evidence of rounds up to {state.head_round}, got round {newest}"
    if evidence.audits[0].round <= standing.restored.get(evidence.author, -1):
        return (
            f"the operator has vouched for {evidence.author} since: expected evidence of later "
            "rounds alone"
        )
    return ""


def take(act: Demote, run: Run) -> None:
    """The author loses its standing; nothing for evidence that the run has outgrown."""
    if objection(act, run):
        return
    auditor, evidence = opened(act)
    if evidence.run_id != run.run_id:
        return
    demoted = Demoted(auditor, words(evidence), act.body, act.public_key)
    run.members.standing.demote(evidence.author, demoted)


def rejection_objection(act: Reject, state: RunState) -> str:
    """Why rejected evidence changes nothing any more; empty when it counts against its auditor."""
    try:
        auditor, _ = opened(act)
    except RemoteProtocolError as error:
        return str(error)
    if auditor not in state.verdicts.auditors:
        return f"expected evidence of an auditor of this run, got that of {auditor}"
    known = state.operator.rejected.get(auditor)
    if known and sha256(act.body) in known.digests:
        return f"this evidence of {auditor} is rejected already"
    if known and len(known.digests) >= REJECTED_MAX:
        return f"{REJECTED_MAX} pieces of evidence of {auditor} are rejected already"
    return ""


def reject(act: Reject, state: RunState) -> None:
    """Count rejected evidence against its auditor; nothing for what the run has outgrown."""
    if rejection_objection(act, state):
        return
    auditor, _ = opened(act)
    earlier = state.operator.rejected.get(auditor, Rejected((), ""))
    digests = (*earlier.digests, sha256(act.body))
    state.operator.rejected[auditor] = Rejected(digests, act.reason)


def alarm(state: RunState) -> str:
    """Why the operator should look after the auditors, with the cure; empty while all is well."""
    said = [auditing.alarm(state.verdicts)]
    for auditor, each in state.operator.rejected.items():
        count = len(each.digests)
        said.append(
            f"auditor {short(auditor)} accuses with evidence that proves nothing "
            f"({'once' if count == 1 else f'{count} times'}; {each.reason}): see lockstep run "
            f"audit, and take it off: lockstep run auditor remove {auditor}"
        )
    return "; ".join(each for each in said if each)


def opened(act: Demote | Reject) -> tuple[PeerId, Evidence]:
    """The auditor and its evidence; `RemoteProtocolError` for bytes that are none."""
    return open_evidence(SignedEvidence(act.body, act.public_key, act.signature))
