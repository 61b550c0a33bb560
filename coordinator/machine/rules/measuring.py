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

from coordinator.machine.events.effects import (
    AskCheckpoint,
    AskEvaluation,
    CommitRound,
    Effect,
    LossMeasured,
    Point,
)
from coordinator.machine.events.inputs import Evaluated, Event, Ready
from coordinator.machine.state.evaluation import POINTS_KEPT, Evaluation, Turn
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
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


def is_news(said: Evaluated, run: Run) -> bool:
    """Whether the machine takes this word: it is the member's turn, and the round is committed."""
    turn = run.state.evaluation.turn
    if turn is None or run.members.get(said.peer) is None or said.round > run.state.head_round:
        return False
    return (said.peer, said.round) == (turn.peer, turn.round)


def take(said: Evaluated, run: Run) -> list[Effect]:
    """A member has measured a state, or failed to."""
    found, member = run.state.evaluation, run.members.get(said.peer)
    turn = found.turn
    if not is_news(said, run) or turn is None or member is None:
        return []
    if said.failure:
        _end_turn(found, turn, said.failure)
        return []
    about = said.loss, said.samples, said.data_sha256, said.peer, member.name
    found.points = [*found.points, Point(turn.round, turn.step, *about)][-POINTS_KEPT:]
    found.turn, found.note = None, ""
    return [LossMeasured(found.points[-1])]


def follow(event: Event, effects: list[Effect], run: Run) -> list[Effect]:
    """Follow what an event has done, `effects`; returns them with what measuring adds."""
    state, found, told = run.state, run.state.evaluation, list[Effect]()
    _drop_the_silent(run)
    asked: AskCheckpoint | None = None
    for effect in effects:
        match effect:
            case AskCheckpoint(to=None):
                asked, found.wanted, found.tried = effect, True, set()
            case CommitRound(commit):
                _note_due(commit.step, run)
                told += _draw(commit.round, commit.step, asked, run)
            case _:
                pass
        told.append(effect)
    if state.stands_still and state.head_round >= 0:
        told += _draw(state.head_round, state.totals.committed - 1, asked, run)
    turn = found.turn
    if isinstance(event, Ready) and turn and turn.peer == event.peer:
        told.append(AskEvaluation(turn.round, turn.peer, windows(run.spec)))
    return told


def words(state: RunState) -> str:
    """How the next measurement stands, for people; empty when there is nothing to say."""
    found = state.evaluation
    if found.turn:
        who = state.members.named(found.turn.peer)
        return f"{who} measures the state after round {found.turn.round}"
    return found.note


# ---- what happens


def _note_due(step: int, run: Run) -> None:
    found, retention = run.state.evaluation, run.spec.retention
    last = step + 1 >= run.state.schedule(run.spec).steps
    if last:
        found.turn = None  # an older state has lost its use
    if last or retention.snapshot_due(step) or retention.checkpoint_due(step):
        found.wanted, found.tried = True, set()


def _draw(round: int, step: int, asked: AskCheckpoint | None, run: Run) -> list[Effect]:
    """Give the turn to a member, if a measurement is wanted and the state can be measured: to the
    writer of the checkpoint that was asked for, if there is one.
    """
    state, found = run.state, run.state.evaluation
    if not found.wanted or found.turn or state.consensus.apart:
        return []
    idle = found.tried | state.verdicts.held.keys()
    drawn = [peer for peer in run.drawn_for(b"evaluation", round) if peer not in idle]
    if not drawn:
        return []
    writer = asked.writer if asked and asked.round == round else None
    peer = writer if writer in drawn else drawn[0]
    found.wanted, found.turn = False, Turn(round, step, peer)
    return [AskEvaluation(round, peer, windows(run.spec))]


def _drop_the_silent(run: Run) -> None:
    found, turn = run.state.evaluation, run.state.evaluation.turn
    if turn is None:
        return
    if run.members.get(turn.peer) is None:
        _end_turn(found, turn, "it went")
    elif run.state.decided_round > turn.round + PATIENCE_ROUNDS:
        _end_turn(found, turn, f"it said nothing in {PATIENCE_ROUNDS} rounds")


def _end_turn(found: Evaluation, turn: Turn, reason: str) -> None:
    """The member measures nothing: another one does, after a later commit, or nobody."""
    found.turn, found.note = None, f"{turn.peer[:8]} did not measure it: {reason}"
    found.tried.add(turn.peer)
    found.wanted = found.wanted or len(found.tried) < TURNS_MAX
