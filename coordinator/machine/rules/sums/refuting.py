"""An auditor's word that a summer has signed a wrong sum, and what follows from it. Pure.

    added again, another digest --> the signer has no standing: it gets no work and adds no more
    the operator vouches for it --> it has standing again; sums of earlier rounds count no more

Rules
- The evidence has the summer's own signature under the question of the committed round, which the
  coordinator checks before it makes an act of it (`coordinator.service.evidence`). So nobody but
  the operator's own auditor can accuse, and it only with what the summer has signed.
- Nothing is counted: one auditor's word is enough against all who signed a digest, each by its own
  evidence. Whether it adds right anybody sees by `lockstep verify --sums`.
- A part that is missing is no evidence.
"""

from coordinator.machine.events.acts import Refute, key_of
from coordinator.machine.state.run import Run
from coordinator.machine.state.standing import Demoted
from protocol.errors import RemoteProtocolError
from protocol.sums.signed import read_wrong_sum, words


def objection(act: Refute, run: Run) -> str:
    """Why the evidence takes no standing from the summer; empty when it does."""
    try:
        said = read_wrong_sum(act.body)
    except RemoteProtocolError as error:
        return str(error)
    summer, standing = said.signed.summer, run.members.standing
    if key_of(act.auditor) not in run.state.verdicts.auditors:
        return f"expected the word of an auditor of this run, got that of {act.auditor}"
    if said.run_id != run.run_id:
        return f"expected a sum of run {run.run_id}, got one of run {said.run_id}"
    if said.round > run.state.head_round:
        return f"expected a sum of rounds up to {run.state.head_round}, got round {said.round}"
    if summer in standing.demoted:
        return f"{summer} has lost its standing already"
    if said.round <= standing.restored.get(summer, -1):
        return f"the operator has vouched for {summer} since: expected a sum of a later round"
    return ""


def take(act: Refute, run: Run) -> None:
    """The summer loses its standing; nothing for evidence that the run has outgrown."""
    if objection(act, run):
        return
    said = read_wrong_sum(act.body)
    demoted = Demoted(key_of(act.auditor), words(said), act.body)
    run.members.standing.demote(said.signed.summer, demoted)
