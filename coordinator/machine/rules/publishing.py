r"""When the model of a run is published, who writes it, and when a checkpoint counts as made. Pure.

    idle --due--> wanted --writer and second drawn--> at work --stored and agreed--> made
                    ^                                   |
                    '----- the writer went, or failed --'    after TRIES_MAX: given up until due

Rules
- Due after every `checkpoint_every` steps, after the last one, and when the operator asks. Where
  members differ by design a mean is published: what is due waits for one, and what the operator
  asks for makes the next round one.
- Members are asked in front of the commit that they are to publish: those that are drawn come to
  its state with everyone else. Where no round is open and none will be, the head is published.
- The writer is drawn among ready members with standing, first among those whose measured uplink is
  at least half the median: a slow line may take hours for a model. It sends the files; the
  coordinator's shell computes both digests of what it has stored (`CheckpointStored`). A second
  member tells the SHA-256 of its own parameters.
- It is made when the stored parameters have the state digest that the members agreed on and, while
  the second is there, its SHA-256 too. Without a second the checkpoint says so.
- Members that publish to an address of their own say it when they have; it is shown once their
  state is the agreed one.
- Old ones go for new ones: at most `kept` stay, and together they are no larger than the room.
"""

from collections.abc import Iterable
from dataclasses import replace
from statistics import median_low

from coordinator.machine.events.effects import (
    AskCheckpoint,
    Checkpoint,
    CheckpointMade,
    CommitRound,
    Effect,
    RecordDigest,
)
from coordinator.machine.events.inputs import (
    CheckpointEvent,
    CheckpointFailed,
    CheckpointSaid,
    CheckpointStored,
    Event,
    Ready,
    RoomGiven,
)
from coordinator.machine.state.checkpoints import (
    ASKED_KEPT,
    NAMES_KEPT,
    PUBLISHED_KEPT,
    WISH,
    Asked,
    Checkpoints,
    Publication,
    Work,
)
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from protocol.ids import PeerId

TRIES_MAX = 4
"""Members that are asked to write one checkpoint, one after the other."""


def follow(event: Event, effects: list[Effect], run: Run) -> list[Effect]:
    """Follow what an event has done, `effects`; returns them with what publishing adds."""
    told: list[Effect] = []
    for effect in effects:
        if isinstance(effect, CommitRound):
            _note_names(effect, run)
            told += _on_commit(effect, run)
        elif isinstance(effect, RecordDigest):
            _note_digest(effect, run.state.checkpoints)
        told.append(effect)
    _drop_those_that_went(run)
    return told + _settle(event, run)


def wish(state: RunState) -> None:
    """The operator wants a checkpoint now."""
    state.checkpoints.wanted, state.checkpoints.tried = WISH, set()


def objection(state: RunState) -> str:
    """Why a checkpoint that the operator asks for cannot be made; empty when it can."""
    made = state.checkpoints
    if state.head_round < 0 and state.end.finished:
        return "no round was committed: there is no model"
    if made.work or made.wanted:
        return f"one is on its way already: {words(state)}"
    if made.newest and made.newest.round == state.head_round:
        return f"the newest commit is published already: {made.newest.name}"
    return ""


def is_news(said: CheckpointSaid, run: Run) -> bool:
    """Whether the machine takes this word of a member."""
    found, work = run.state.checkpoints, run.state.checkpoints.work
    if run.members.get(said.peer) is None or not run.members.decides(said.peer):
        return False
    if said.url:
        published = ((each.round, each.peer) for each in found.published)
        known = said.round in found.asked
        return known and not said.failure and (said.round, said.peer) not in published
    if work is None or said.round != work.round:
        return False
    if said.failure:
        return work.stored is None and said.peer in (work.writer, work.second)
    return said.peer in work.awaited


def awaited(state: RunState) -> bool:
    """Whether members must still say what the last state is, before the others may leave."""
    work = state.checkpoints.work
    return work is not None and work.round == state.head_round and bool(work.awaited)


def stuck(work: Work) -> tuple[PeerId, str]:
    """The member that a work without progress waits for, and why it is waited for no longer."""
    if work.writer in work.awaited:
        return work.writer, "it did not say what its state is"
    if work.stored is None:
        return work.writer, "it sends nothing any more"
    if work.second and work.second in work.awaited:
        return work.second, "it did not say what its state is"
    return work.writer, "the members did not agree on the state"


def words(state: RunState) -> str:
    """How the next checkpoint stands, for people."""
    found = state.checkpoints
    if work := found.work:
        if work.writer in work.awaited:
            return f"{state.members.named(work.writer)} writes the checkpoint of round {work.round}"
        if work.stored is None:
            return f"{state.members.named(work.writer)} sends the checkpoint of round {work.round}"
        return f"the checkpoint of round {work.round} waits for the members' agreement"
    if found.wanted:
        return f"a checkpoint is wanted: {found.wanted}" + (f"; {found.note}" if found.note else "")
    return found.note


def place(state: RunState) -> str:
    """Where the newest checkpoint is, for people; empty while there is none."""
    found, places = state.checkpoints, []
    if made := found.newest:
        places.append(f"checkpoints/{made.name} in the coordinator's directory")
    newest = max((each.round for each in found.published if each.agreed), default=-1)
    if newest >= (made.round if made else -1):
        places += [
            f"{each.url} (says {each.peer[:8]})"
            for each in found.published
            if each.agreed and each.round == newest
        ]
    round = max(newest, made.round if made else -1)
    return f"the model after round {round}: {', '.join(places)}" if places else ""


# ---- what happens


def _on_commit(effect: CommitRound, run: Run) -> list[Effect]:
    commit, found = effect.commit, run.state.checkpoints
    last = commit.step + 1 >= run.state.schedule(run.spec).steps
    if last or (run.spec.retention.checkpoint_due(commit.step) and found.wanted != WISH):
        why = "the last step" if last else f"step {commit.step + 1}"
        found.wanted, found.tried = why, set()
        if last:  # an older one that is still on its way has lost its use
            found.final_round, found.work = commit.round, None
    if not found.wanted or found.work or run.state.consensus.apart:
        return []  # where members differ by design, their next mean is published
    return _draw(commit.round, commit.step, run)


def take(event: CheckpointEvent, run: Run) -> list[Effect]:
    """Take an event of the members that were asked, or of the shell."""
    found = run.state.checkpoints
    match event:
        case RoomGiven(room_bytes, kept):
            found.room_bytes, found.kept = room_bytes, kept
        case CheckpointSaid() if is_news(event, run):
            if event.url:
                _published(event, found)
            elif event.failure:
                _fail(found, event.peer, event.failure)
            else:
                _said(event, found)
        case CheckpointFailed(peer, round, reason):
            if found.work and found.work.round == round:
                _fail(found, peer, reason)
        case CheckpointStored(peer, round) if found.work:
            if (peer, round) == (found.work.writer, found.work.round):
                found.work.stored = event.state_digest, event.sha256, event.file_bytes
        case _:
            pass
    return []


def _published(said: CheckpointSaid, found: Checkpoints) -> None:
    name, agreed = found.names.get(said.peer, ""), found.agreed(said.round) == said.state_digest
    published = Publication(said.round, said.peer, name, said.url, said.state_digest, agreed)
    found.published = [*found.published, published][-PUBLISHED_KEPT:]


def _said(said: CheckpointSaid, found: Checkpoints) -> None:
    work = found.work
    assert work is not None, "only what a work waits for is news"
    work.said[said.peer] = (said.state_digest, said.sha256)
    if said.peer != work.writer:
        return
    if said.file_bytes > found.room_bytes:
        need, room = f"{said.file_bytes:,} bytes", f"{found.room_bytes:,}"
        found.work, found.wanted = None, ""
        found.note = f"no room: a checkpoint needs {need}, --checkpoint-room gives {room}"
        return
    while found.made and found.made_bytes + said.file_bytes > found.room_bytes:
        found.made = found.made[1:]


def _fail(found: Checkpoints, peer: PeerId, reason: str) -> None:
    """A member that was drawn does not do its part: without a second the work goes on."""
    work = found.work
    if work is None:
        return
    if peer == work.second:
        work.second = None
    elif peer == work.writer:
        found.work, found.note = None, f"{peer[:8]} did not write it: {reason}"
        found.tried.add(peer)


def _drop_those_that_went(run: Run) -> None:
    found, work, members = run.state.checkpoints, run.state.checkpoints.work, run.members
    if not work:
        return
    if work.second in work.awaited and members.get(work.second) is None:
        _fail(found, work.second, "it went")
    if members.get(work.writer) is None and work.stored is None:
        _fail(found, work.writer, "it went")


def _settle(event: Event, run: Run) -> list[Effect]:
    """Complete the work, draw another writer where the head stands still, or tell a member again
    that has come back.
    """
    state, found, effects = run.state, run.state.checkpoints, list[Effect]()
    if made := _completed(state):
        found.made = [*found.made, made][-found.kept :]
        found.work, found.wanted, found.note, found.tried = None, "", "", set()
        effects.append(CheckpointMade(made, tuple(each.name for each in found.made)))
    if state.end.finished and found.final_round < state.head_round:
        _want_the_last(found, state.head_round)
    if state.stands_still and found.wanted and state.consensus.apart:
        found.note = "members differ: the next round takes their mean, once the run goes on"
        if state.end.finished:
            found.wanted, found.note = "", "the last round was none of the mean: members differ"
    elif state.stands_still and found.wanted and not found.work and state.head_round >= 0:
        effects += _draw(state.head_round, state.totals.committed - 1, run)
    work = found.work
    if isinstance(event, Ready) and work and event.peer in work.awaited and not effects:
        effects.append(AskCheckpoint(work.round, work.step, work.writer, work.second, event.peer))
    return effects


def _want_the_last(found: Checkpoints, head_round: int) -> None:
    """The run has ended with this commit, and no round will follow it."""
    found.final_round = head_round
    if not any(each.round == head_round for each in found.made):
        found.wanted, found.tried = "the end of the run", set()
        if found.work and found.work.round != head_round:
            found.work = None


def _draw(round: int, step: int, run: Run) -> list[Effect]:
    """Draw a writer and a second member for the state after `round`, or give up."""
    found = run.state.checkpoints
    if len(found.tried) >= TRIES_MAX:
        found.wanted, found.tried = "", set()
        found.note = f"given up after {TRIES_MAX} members: {found.note}"
        return []
    drawn = run.drawn_for(b"checkpoint", round)
    writers = [peer for peer in drawn if peer not in found.tried]
    if not writers:
        return []
    found.asked[round] = found.asked.get(round) or Asked(step)
    while len(found.asked) > ASKED_KEPT:
        del found.asked[min(found.asked)]
    if not found.room_bytes:
        found.wanted = ""
        return [AskCheckpoint(round, step, None, None)]
    quick = _quick(drawn, run)
    writer = next((peer for peer in writers if peer in quick), writers[0])
    second = next((peer for peer in drawn if peer != writer), None)
    found.work = Work(round, step, writer, second)
    return [AskCheckpoint(round, step, writer, second)]


def _quick(drawn: Iterable[PeerId], run: Run) -> set[PeerId]:
    """The members whose uplinks are known, and not far slower than those of the others."""
    works = {peer: run.work_of(peer) for peer in drawn}
    uplinks = {peer: work.up_bit_s for peer, work in works.items() if work and work.up_bit_s}
    least = median_low(uplinks.values()) / 2 if uplinks else 0
    return {peer for peer, uplink in uplinks.items() if uplink >= least}


def _completed(state: RunState) -> Checkpoint | None:
    """The checkpoint that is complete now, if there is one; a wrong one fails its writer."""
    found = state.checkpoints
    work, agreed = found.work, found.agreed(found.work.round) if found.work else None
    if work is None or work.stored is None or agreed is None or work.awaited:
        return None
    state_digest, sha256, _ = work.stored
    if state_digest != agreed:
        _fail(found, work.writer, f"its parameters are {state_digest:016x}, not {agreed:016x}")
        return None
    second = work.said.get(work.second) if work.second else None
    if second and second != (state_digest, sha256):
        _fail(found, work.writer, f"{work.second} has parameters with another SHA-256")
        return None
    about = work.round, work.step, *work.stored
    name = found.names.get(work.writer, "")
    return Checkpoint(*about, work.writer, name, work.second if second else None)


def _note_digest(effect: RecordDigest, found: Checkpoints) -> None:
    if asked := found.asked.get(effect.round):
        asked.agreed = effect.state_digest if effect.reports else None
        found.published = [
            replace(each, agreed=each.state_digest == asked.agreed)
            if each.round == effect.round
            else each
            for each in found.published
        ]


def _note_names(effect: CommitRound, run: Run) -> None:
    """Remember the names of the authors: a checkpoint names them when they are gone."""
    names = run.state.checkpoints.names
    for entry in effect.commit.entries:
        member = run.members.get(entry.author)
        if member and member.name:
            names[entry.author] = member.name
    for oldest in list(names)[: len(names) - NAMES_KEPT]:
        del names[oldest]
