"""An auditor's evidence against an author, and what follows from it. Pure.

    evidence of a named auditor --> the author has no standing, gets no work, nothing of it counts
    the operator vouches for it --> it has standing again; evidence of earlier rounds counts no more

Both are acts of the run's chain (`coordinator.machine.operator.acts`). What an auditor that was
taken off has found stays: the evidence can be recomputed by anybody, and the operator judges.
"""

from coordinator.machine.members.membership import Membership
from coordinator.machine.members.standing import Demoted
from coordinator.machine.operator.acts import Demote
from coordinator.machine.run_state import RunState
from protocol.codec.evidence import Evidence, SignedEvidence, open_evidence, words
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId


def objection(act: Demote, state: RunState, members: Membership) -> str:
    """Why evidence takes no standing from its author; empty when it does."""
    try:
        auditor, evidence = opened(act)
    except RemoteProtocolError as error:
        return str(error)
    standing, newest = members.standing, evidence.audits[-1].round
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


def take(act: Demote, state: RunState, members: Membership, run_id: RunId) -> None:
    """The author loses its standing; nothing for evidence that the run has outgrown."""
    if objection(act, state, members):
        return
    auditor, evidence = opened(act)
    if evidence.run_id != run_id:
        return
    members.standing.demote(evidence.author, Demoted(auditor, words(evidence), act.body))


def opened(act: Demote) -> tuple[PeerId, Evidence]:
    """The auditor and its evidence; `RemoteProtocolError` for bytes that are none."""
    return open_evidence(SignedEvidence(act.body, act.public_key, act.signature))
