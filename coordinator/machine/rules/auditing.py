"""The word of a run's auditors on its states: it is final. Pure.

    votes: provisional --an auditor's word--> ruled --another one's, the same--> ruled
                                                '---- another one's, another: the run is held

An auditor replays the log, and the operator names it by its key. Where one is named nobody counts
votes against each other: what all members report alike stands on record until the auditor has
replayed the round, and its word decides. Members that differ from it are told to resync, and
refused when they differ again; members that agree with it are not touched, be they one against a
hundred.

Rules
- A word counts while its round is among the newest that the tally keeps. An auditor that is further
  behind decides nothing until it has caught up; meanwhile nobody is blamed, and the run goes on:
  whatever the members' states are, the log makes one state alone.
- When two auditors differ, one of them, or the release that it runs, computes wrong: no further
  round opens until the operator takes one off, or one corrects its word.
- The word of one that is taken off counts no more. What it has decided stays, unless another says
  otherwise.
- A payload that an auditor has applied is available: it becomes void only if every member lacks it.
- A payload that an auditor holds has one copy more (`coordinator.machine.state.receipts`).
"""

from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import Audited
from coordinator.machine.rules import membership
from coordinator.machine.rules.judging import Judge
from coordinator.machine.state.run import Run
from coordinator.machine.state.standing import AUDITOR_RANK
from coordinator.machine.state.verdicts import DigestVerdicts
from protocol.ids import PeerId

CURE = "take the wrong one off: lockstep run auditor remove KEY"


def take(said: Audited, run: Run, now_ms: int) -> list[Effect]:
    """Take the word of a node on the state after a round; nothing when it is no auditor, or speaks
    of a state that the chain does not make any more.
    """
    verdicts, judge = run.state.verdicts, Judge(run, now_ms)
    if not is_news(said, run):
        return []
    run.state.voids.note_audited(said.round)
    verdicts.tally.say(said.round, said.peer, said.state_digest, said.snapshot_sha256)
    held, verdicts.contradiction = verdicts.contradiction, verdicts.tally.contradiction
    if verdicts.contradiction:
        return []
    if held:
        return membership.follow(_rule_all(verdicts, judge), run, now_ms)
    return membership.follow(_rule(said.round, verdicts, judge), run, now_ms)


def is_news(said: Audited, run: Run) -> bool:
    """Whether the word of a node changes anything."""
    verdicts = run.state.verdicts
    if said.peer not in verdicts.auditors or run.state.is_outdated(said):
        return False
    if not verdicts.tally.keeps(said.round):
        return False
    reports = verdicts.tally.by_round.get(said.round)
    word = said.state_digest, said.snapshot_sha256
    return reports is None or reports.words.get(said.peer) != word


def appoint(auditor: PeerId, verdicts: DigestVerdicts) -> None:
    """The word of this key is final from now on: no member waits for the others' replays."""
    verdicts.auditors.add(auditor)
    verdicts.held.clear()
    for reports in verdicts.tally.by_round.values():
        reports.before = {}


def dismiss(auditor: PeerId, run: Run, now_ms: int) -> list[Effect]:
    """The word of this key counts no more; that of the others decides, or votes when there is no
    other.
    """
    verdicts, judge = run.state.verdicts, Judge(run, now_ms)
    if auditor not in verdicts.auditors:
        return []
    verdicts.auditors.discard(auditor)
    for reports in verdicts.tally.by_round.values():
        reports.words.pop(auditor, None)
        reports.provisional &= bool(verdicts.auditors)
    verdicts.contradiction = verdicts.tally.contradiction
    if verdicts.contradiction:
        return []
    if verdicts.auditors:
        return _rule_all(verdicts, judge)
    rounds = [round for round, each in verdicts.tally.by_round.items() if not each.final]
    return [effect for round in rounds for effect in judge.count(round)]


def alarm(verdicts: DigestVerdicts) -> str:
    """Why the operator should look after the auditors, with the cure; empty while all is well."""
    if verdicts.contradiction:
        return f"{verdicts.contradiction}: {CURE}"
    open_rounds = [
        round
        for round, reports in sorted(verdicts.tally.by_round.items())
        if not reports.ruled and len(set(reports.digests().values())) > 1
    ]
    if not verdicts.auditors or not open_rounds:
        return ""
    return (
        f"members differ on the state after round {open_rounds[0]}, and no auditor has said which "
        "is right: see that it runs and keeps up, or take it off with lockstep run auditor remove"
    )


def _rule_all(verdicts: DigestVerdicts, judge: Judge) -> list[Effect]:
    rounds = [round for round, each in sorted(verdicts.tally.by_round.items()) if each.words]
    return [effect for round in rounds for effect in _rule(round, verdicts, judge)]


def _rule(round: int, verdicts: DigestVerdicts, judge: Judge) -> list[Effect]:
    """Decide a round as the auditors say, who are of one mind."""
    reports = verdicts.tally.by_round[round]
    word = next(digest for digest, _ in reports.words.values())
    if reports.ruled and reports.verdict == word:
        return []
    if reports.final and reports.verdict != word:
        _forgive(round, verdicts)
    said = reports.digests() | dict(sorted(reports.heard.items()))
    reports.overrule(word)
    reports.rank = AUDITOR_RANK
    for peer in (peer for peer, digest in said.items() if digest == word):
        judge.agrees(peer, round, reports)
    # without a member's report the record of the ruling is made with the first of them
    effects = judge.put_on_record(round) if reports.reported else []
    for peer in (peer for peer, digest in said.items() if digest != word):
        effects += judge.differs(peer, round)
    return effects


def _forgive(round: int, verdicts: DigestVerdicts) -> None:
    """Clear the records of members that were blamed by a decision that was wrong."""
    for record in verdicts.records.values():
        if record.round >= round:
            record.differed, record.muted, record.refused_until_ms = 0, False, 0
