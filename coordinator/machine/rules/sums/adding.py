"""The summers of a round are asked to add, and answer.

    holding --the oldest round closes, with a quorum--> its authors are fixed: summers are asked
       '------------------------, without one--------> skipped
    asked --every range is settled, or nobody's------> committed; skipped where no range is settled

Rules
- Only the oldest undecided round is added: so the learning rate of its step is known. When the
  operator changes it meanwhile, everybody is asked again.
- Summers that went are replaced at once, those that are late when their time is over
  (`coordinator.machine.state.sums.round_sums`). Everybody is told of each that comes, so that
  authors give it their parts.
- Unlike sums are a dispute. What was signed is kept with the commit, and an auditor adds again
  (`coordinator.machine.rules.sums.refuting`); nobody is judged here.
"""

from collections.abc import Iterable, Sequence

from coordinator.machine.events.effects import Dispute, Effect, SummerAdded, SumsAsked
from coordinator.machine.events.inputs import Summed, SummersLate
from coordinator.machine.rules import closing
from coordinator.machine.state.run import Run
from coordinator.machine.state.sums.adding import Adding, SummerAnswer
from coordinator.machine.state.sums.round_sums import Asked
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.codec.commit_sums import RangeSum, Sums
from protocol.codec.commits import Entry, author_list_bytes
from protocol.ids import Digest, PeerId, sha256
from protocol.schedule import scalars
from protocol.sums.asked import Question, SumAuthor
from protocol.sums.results import authors_behind
from protocol.sums.signed import SumSigned


def is_news(said: Summed, run: Run) -> bool:
    """Whether the sum is a further one of a member or relay that was asked, under the question
    that is open.
    """
    undecided = run.state.undecided_round(said.round)
    if undecided is None or undecided.sums is None or not run.is_here(said.peer):
        return False
    return undecided.sums.is_news(said.number, _signed(said), said.learning_rate_bits)


def take(event: Summed | SummersLate, run: Run, now_ms: int) -> list[Effect]:
    """A summer says what it has found, or the time of some is over."""
    undecided = run.state.undecided_round(event.round)
    if undecided is None or undecided.sums is None:
        return []  # decided at the same instant
    if isinstance(event, SummersLate):
        asked = undecided.sums.reach(now_ms, run.members.copies_are_awaited)
        return _added(undecided, asked, run)
    if not is_news(event, run):
        return []
    signed, asked = undecided.sums.sign(event.number, _signed(event), now_ms)
    dispute = [Dispute(event.round, event.number, signed)] if signed else []
    return [*dispute, *_added(undecided, asked, run)]


def question(run: Run, round: int, number: int) -> Question | None:
    """What the summers of a range were asked; None while they were not, or for no range."""
    undecided = run.state.undecided_round(round)
    adding = undecided.sums.adding if undecided and undecided.sums else None
    if adding is None or not 0 <= number < len(adding.by_range):
        return None
    return adding.question(run.run_id, round, number)


def replace_gone(undecided: UndecidedRound, run: Run, now_ms: int) -> list[Effect]:
    """Ask others in place of the summers that went."""
    if undecided.sums is None or not undecided.sums.vacant:
        return []
    return _added(undecided, undecided.sums.fill(now_ms), run)


def fix(undecided: UndecidedRound, run: Run, now_ms: int) -> list[Effect] | None:
    """Fix the authors of the oldest undecided round, which may close, and ask its summers; None
    where it has none, or no quorum, or where that is done.
    """
    if undecided.sums is None or undecided.is_closed:
        return None
    if not closing.reaches_quorum(closing.contributors(undecided, run.members), run):
        return None
    counted = closing.close(undecided, run, now_ms)
    weight_of = run.spec.algorithm.weight_of  # as in the commit's entries
    authors = [
        SumAuthor(each.peer, Digest(each.digest), weight_of(each.samples)) for each in counted
    ]
    return _ask_all(undecided, undecided.sums.fix(authors, _rate(run), now_ms), run, now_ms)


def ask_again(undecided: UndecidedRound, run: Run, now_ms: int) -> list[Effect]:
    """Ask the summers of the oldest undecided round anew if the learning rate has changed."""
    sums = undecided.sums
    if sums is None or sums.adding is None:
        return []
    if sums.adding.learning_rate_bits == (rate := _rate(run)):
        return []
    return _ask_all(undecided, sums.ask_again(rate, now_ms), run, now_ms)


def asked_again(undecided: UndecidedRound, peer: PeerId, run: Run) -> list[Effect]:
    """The question to a summer that is back and has not answered it."""
    sums = undecided.sums
    if sums is None or sums.adding is None:
        return []
    numbers = [
        number
        for number, found in enumerate(sums.adding.by_range)
        if found.is_open and peer in sums.living(number) and not found.said(peer)
    ]
    return _asks(undecided, [(peer, number) for number in numbers], run)


def results(
    undecided: UndecidedRound, entries: Sequence[Entry], run: Run
) -> tuple[Sums | None, tuple[tuple[PeerId, ...], ...]]:
    """The sums of a round that is added, and who signed each; none where payloads are applied.
    `entries` are those of its commit.
    """
    adding = undecided.sums.adding if undecided.sums else None
    if adding is None:
        return None, ()
    settled = tuple(
        RangeSum(number, kept.digest, kept.result_bytes, found.silent)
        for number, found in enumerate(adding.by_range)
        if (kept := found.settled)
    )
    authors = authors_behind(entries, adding.learning_rate_bits, run.spec.algorithm)
    name = sha256(author_list_bytes(entries, settled))
    return Sums(len(adding.by_range), settled, authors, name), _signers(adding)


def _signers(adding: Adding) -> tuple[tuple[PeerId, ...], ...]:
    """The signers of each of the results that are settled."""
    return tuple(found.signers() for found in adding.by_range if found.settled)


def signed(undecided: UndecidedRound) -> tuple[SumSigned, ...]:
    """What the summers of a round have signed."""
    adding = undecided.sums.adding if undecided.sums else None
    return adding.signed() if adding else ()


def book(undecided: UndecidedRound, run: Run, now_ms: int) -> None:
    """The round is decided: note what its summers have done."""
    sums = undecided.sums
    if sums is None or sums.adding is None:
        return
    signers = [peer for each in _signers(sums.adding) for peer in each]
    missed = set() if undecided.disturbed else sums.missed(now_ms)
    for peer in sorted({*signers, *missed}):
        if work := run.work_of(peer):
            work.book_sums(signers.count(peer), missed=peer in missed)


def _ask_all(undecided: UndecidedRound, asked: list[Asked], run: Run, now_ms: int) -> list[Effect]:
    return [*_asks(undecided, asked, run), *replace_gone(undecided, run, now_ms)]


def _rate(run: Run) -> int:
    """The learning rate of the step that the oldest undecided round makes, as bits."""
    rate, _ = scalars(run.state.schedule(run.spec), run.state.totals.committed)
    return rate


def _signed(said: Summed) -> SummerAnswer:
    about = said.peer, said.digest, said.result_bytes
    return SummerAnswer(*about, said.public_key, said.signature)


def _added(undecided: UndecidedRound, asked: Iterable[Asked], run: Run) -> list[Effect]:
    """Tell everybody of these summers, and ask them if the authors are fixed."""
    come = [SummerAdded(undecided.round, number, peer) for peer, number in asked]
    return [*come, *_asks(undecided, asked, run)]


def _asks(undecided: UndecidedRound, asked: Iterable[Asked], run: Run) -> list[Effect]:
    """The questions to these summers, each in one message; none before the authors are fixed."""
    adding = undecided.sums.adding if undecided.sums else None
    if adding is None:
        return []
    numbers = dict[PeerId, list[int]]()
    for peer, number in asked:
        numbers.setdefault(peer, []).append(number)
    return [
        SumsAsked(
            peer,
            tuple(adding.question(run.run_id, undecided.round, number) for number in numbers[peer]),
        )
        for peer in sorted(numbers)
    ]
