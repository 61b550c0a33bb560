r"""When the validation loss of a run is measured, and by whom. Pure.

    idle --due--> wanted --a member is drawn--> its turn --measured--> idle
                    ^                             |
                    '--- it went, failed, or said nothing for PATIENCE_ROUNDS
                         after TURNS_MAX: given up until due

Rules
- Due after the steps whose state everybody can name: those with a snapshot, those of published
  checkpoints, and the last one.
- One member is asked, in front of the commit whose state it is to measure, so that it comes to
  that state with everyone else. The writer of the checkpoint of a state measures it too, for the
  model card. Else the member is drawn from the round among ready members with standing.
- When it gives no answer a second one is asked, with the state of the next commit; with that of
  the head where no round will follow.
- Where members differ by design, the next mean is measured.
- The measured loss is shown, and decides nothing: it is one member's word.
"""

from coordinator.machine.checkpoints.events import AskCheckpoint
from coordinator.machine.evaluation.events import AskEvaluation, Evaluated, LossMeasured
from coordinator.machine.evaluation.state import POINTS_KEPT, Evaluation, Point, Turn
from coordinator.machine.events import CommitRound, Effect, Event, Ready
from coordinator.machine.members.membership import Membership
from coordinator.machine.run_state import RunState
from protocol.limits import VALIDATION_TOKENS, VALIDATION_WINDOWS_MAX
from protocol.runfile import RunSpec

TURNS_MAX = 2
"""Members that are asked for one measurement, one after the other."""

PATIENCE_ROUNDS = 24
"""Rounds after which a member without an answer is not waited for; a node gives up after 16 by
itself."""


def windows(spec: RunSpec) -> int:
    """Held-out samples of one measurement: the same number for all, so that losses compare."""
    fitting = VALIDATION_TOKENS // spec.data.sequence_length
    return max(1, min(VALIDATION_WINDOWS_MAX, fitting))


def follow(
    event: Event, effects: list[Effect], state: RunState, members: Membership, spec: RunSpec
) -> list[Effect]:
    """Take the event if it is about this, and follow what it has done, `effects`; returns them with
    what measuring adds.
    """
    found, told, samples = state.evaluation, list[Effect](), windows(spec)
    if isinstance(event, Evaluated) and is_news(event, state, members):
        told += _take(event, found, members)
    _drop_the_silent(found, state, members)
    checkpoint: AskCheckpoint | None = None
    for effect in effects:
        match effect:
            case AskCheckpoint(to=None):
                checkpoint, found.wanted, found.tried = effect, True, set()
            case CommitRound(commit):
                _note_due(commit.step, state, spec)
                here = commit.round, commit.step
                told += _draw(*here, state, members, samples=samples, checkpoint=checkpoint)
            case _:
                pass
        told.append(effect)
    stands = state.end.finished or state.operator.paused is not None
    if stands and not state.undecided and state.head_round >= 0:
        here = state.head_round, state.totals.committed - 1
        told += _draw(*here, state, members, samples=samples, checkpoint=checkpoint)
    turn = found.turn
    if isinstance(event, Ready) and turn and turn.peer == event.peer:
        told.append(AskEvaluation(turn.round, turn.peer, samples))
    return told


def is_news(said: Evaluated, state: RunState, members: Membership) -> bool:
    """Whether the machine takes this word: it is the member's turn, and the round is committed."""
    turn = state.evaluation.turn
    if turn is None or members.get(said.peer) is None or said.round > state.head_round:
        return False
    return (said.peer, said.round) == (turn.peer, turn.round)


def words(state: RunState) -> str:
    """How the next measurement stands, for people; empty when there is nothing to say."""
    found = state.evaluation
    if found.turn:
        who = state.members.named(found.turn.peer)
        return f"{who} measures the state after round {found.turn.round}"
    return found.note


# ---- what happens


def _take(said: Evaluated, found: Evaluation, members: Membership) -> list[Effect]:
    turn = found.turn
    assert turn is not None, "only the word of the member whose turn it is is news"
    if said.failure:
        _end_turn(found, said.failure)
        return []
    member = members.get(said.peer)
    name = member.name if member else ""
    about = said.loss, said.samples, said.data_sha256, said.peer, name
    found.points = [*found.points, Point(turn.round, turn.step, *about)][-POINTS_KEPT:]
    found.turn, found.note = None, ""
    return [LossMeasured(found.points[-1])]


def _note_due(step: int, state: RunState, spec: RunSpec) -> None:
    found, retention = state.evaluation, spec.retention
    last = step + 1 >= state.schedule(spec).steps
    if last:
        found.turn = None  # an older state has lost its use
    if last or retention.snapshot_due(step) or retention.checkpoint_due(step):
        found.wanted, found.tried = True, set()


def _draw(
    round: int,
    step: int,
    state: RunState,
    members: Membership,
    *,
    samples: int,
    checkpoint: AskCheckpoint | None,
) -> list[Effect]:
    """Give the turn to a member, if a measurement is wanted and the state can be measured."""
    found = state.evaluation
    if not found.wanted or found.turn or state.consensus.apart:
        return []
    able = [
        member.peer
        for member in members.ready()
        if members.decides(member.peer)
        and member.round <= round
        and member.peer not in state.verdicts.held
        and member.peer not in found.tried
    ]
    drawn = members.standing.drawn_first(round, able, b"evaluation")
    if checkpoint and checkpoint.round == round and checkpoint.writer in able:
        drawn = [checkpoint.writer, *drawn]
    if not drawn:
        return []
    found.wanted, found.turn = False, Turn(round, step, drawn[0])
    return [AskEvaluation(round, drawn[0], samples)]


def _drop_the_silent(found: Evaluation, state: RunState, members: Membership) -> None:
    turn = found.turn
    if turn is None:
        return
    if members.get(turn.peer) is None:
        _end_turn(found, "it went")
    elif state.decided_round > turn.round + PATIENCE_ROUNDS:
        _end_turn(found, f"it said nothing in {PATIENCE_ROUNDS} rounds")


def _end_turn(found: Evaluation, reason: str) -> None:
    """The member measures nothing: another one does, after a later commit, or nobody."""
    turn = found.turn
    assert turn is not None, "only the member whose turn it is can fail"
    found.turn, found.note = None, f"{turn.peer[:8]} did not measure it: {reason}"
    found.tried.add(turn.peer)
    found.wanted = found.wanted or len(found.tried) < TURNS_MAX
