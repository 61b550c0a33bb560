"""Writes the messages of the coordinator: to a node, or to all of them."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from coordinator.journal import RecordedCommit, RecordedEntry
from coordinator.machine.events.effects import (
    AskEvaluation,
    Assignment,
    FinishRun,
    OpenRound,
    Refuse,
    SummerAdded,
)
from protocol import wire_pb2 as wire
from protocol.codec.chain import SignedEntry
from protocol.codec.commits import SignedCommit
from protocol.ids import PeerId
from protocol.limits import COMMITS_PER_REPLY, MESSAGE_BYTES_MAX
from protocol.shuffle import Share
from protocol.sums.asked import Question
from protocol.sums.plan import SumPlan
from protocol.sums.signed import SumSigned

SUM_SIGNED_BYTES = 144
"""Bytes of what a summer has signed, about: a digest, a key and a signature."""

SHARE_BYTES = 24
"""Bytes of a share in a message, at most: two numbers of ten, and what frames them."""


def heartbeat_reply(
    sent_ms: int, received_ms: int, replied_ms: int, standing: tuple[str, str] = ("", "")
) -> wire.CoordinatorMessage:
    """The reply to a heartbeat, from which a node estimates the clock offset and learns its
    standing: (state, reason).
    """
    reply = wire.HeartbeatReply(
        sent_ms=sent_ms,
        received_ms=received_ms,
        replied_ms=replied_ms,
        state=standing[0],
        reason=standing[1],
    )
    return wire.CoordinatorMessage(heartbeat=reply)


def refused_message(refuse: Refuse) -> wire.CoordinatorMessage:
    """The word to a node that may not join."""
    refused = wire.Refused(
        reason=refuse.reason, wrong_results=refuse.wrong_results, retry=refuse.retry
    )
    return wire.CoordinatorMessage(refused=refused)


def finished_message(finish: FinishRun, head_round: int) -> wire.CoordinatorMessage:
    """The word to nodes of a run that has ended."""
    finished = wire.RunFinished(head_round=head_round, reason=finish.reason)
    return wire.CoordinatorMessage(finished=finished)


def opened_message(opened: OpenRound, assignment: Assignment) -> wire.CoordinatorMessage:
    """The opening of a round for one member."""
    summers, rows = SumPlan.told(opened.plan)
    return wire.CoordinatorMessage(
        opened=wire.RoundOpened(
            round=opened.round,
            step=opened.step,
            opened_ms=opened.instants.opened,
            bell_ms=opened.instants.bell,
            publish_by_ms=opened.instants.publish_by,
            commit_by_ms=opened.instants.commit_by,
            shares=_shares(assignment.shares),
            learning_rate_bits=opened.learning_rate_bits,
            decay_bits=opened.decay_bits,
            muted=assignment.muted,
            reason=assignment.reason,
            assigned=opened.assigned,
            mean=opened.mean,
            among_neighbours=opened.among_neighbours,
            only_mixes=opened.only_mixes,
            neighbours=assignment.neighbours if opened.among_neighbours else (),
            summers=summers,
            ranges=[wire.RangeSummers(places=row) for row in rows],
        )
    )


def opened_for_relays(opened: OpenRound) -> wire.CoordinatorMessage:
    """The opening of a round for those that do not work in it."""
    summers, rows = SumPlan.told(opened.plan)
    ranges = [wire.RangeSummers(places=row) for row in rows]
    told = wire.RoundOpened(round=opened.round, step=opened.step, summers=summers, ranges=ranges)
    return wire.CoordinatorMessage(opened=told)


def summer_added(added: SummerAdded) -> wire.CoordinatorMessage:
    """The word to all that one more node is to hold the parts of a range."""
    told = wire.SummerAdded(round=added.round, range=added.number, peer_id=added.peer)
    return wire.CoordinatorMessage(summer_added=told)


def sums_asked(questions: Sequence[Question]) -> wire.CoordinatorMessage:
    """The request to a summer to add ranges of one round: one at least."""
    about = questions[0]
    asked = wire.SumsAsked(
        round=about.round,
        learning_rate_bits=about.learning_rate_bits,
        authors=[
            wire.SumAuthor(author=each.author, root=each.root, samples=each.samples)
            for each in about.authors
        ],
        ranges=[wire.RangeAsked(range=each.number, silent=each.silent) for each in questions],
    )
    return wire.CoordinatorMessage(sums_asked=asked)


def evaluation_asked(ask: AskEvaluation) -> wire.CoordinatorMessage:
    """The request to measure the validation loss of a state."""
    asked = wire.EvaluationAsked(round=ask.round, samples=ask.samples)
    return wire.CoordinatorMessage(evaluation=asked)


def chain_entry(signed: SignedEntry) -> wire.ChainEntry:
    """An entry of the chain."""
    return wire.ChainEntry(body=signed.body, signature=signed.signature)


def committed_message(
    signed: SignedCommit,
    holders: tuple[tuple[PeerId, ...], ...],
    before: Iterable[SignedEntry] = (),
    *,
    to_author: bool = False,
) -> wire.CoordinatorMessage:
    """A commit, with members that hold each of the payloads or sums that nodes need of it, and the
    entries of the chain in front of it. `to_author`: to those whose payloads were summed.
    """
    return wire.CoordinatorMessage(
        committed=wire.RoundCommitted(
            commit=wire.Committed(
                body=signed.body, signature=signed.signature, before=map(chain_entry, before)
            ),
            holders=[wire.Holders(peer_ids=peers) for peers in holders],
            is_author=to_author,
        )
    )


def _recorded(
    recorded: RecordedCommit, entries: Sequence[RecordedEntry] = (), previous_round: int = -1
) -> wire.Committed:
    """A commit of the log, with the digest that the majority reported after it, the entries of the
    chain between it and the commit of `previous_round`, and those that make its payloads void.
    """
    before = [each for each in entries if previous_round <= each.after_round < recorded.round]
    voids = [each for each in entries if each.round == recorded.round]
    return wire.Committed(
        body=recorded.signed.body,
        signature=recorded.signed.signature,
        state_digest=recorded.state_digest or 0,
        digest_reports=recorded.reports,
        snapshot_sha256=recorded.snapshot_sha256,
        before=[chain_entry(each.signed) for each in before],
        voids=[chain_entry(each.signed) for each in voids],
        trained=_trained(recorded),
        signed_sums=[_sum_signed(each) for each in recorded.signed_sums],
        author_list=recorded.signed.author_list,
    )


def commits_reply(
    recorded: list[RecordedCommit],
    decided_round: int,
    head_round: int,
    entries: Sequence[RecordedEntry] = (),
) -> wire.Commits:
    """One page of the log: commits in `recorded`, oldest first, as many as fit one message, with
    the `entries` of the chain around them.

    A node takes every round up to `decided_round` that has no commit for skipped. So when commits
    are left for the next page, `decided_round` is that of the last commit in this one.
    """
    sizes = accumulate(map(_log_bytes, recorded))
    told = [
        row for row, size in zip(recorded, sizes, strict=True) if size <= MESSAGE_BYTES_MAX // 2
    ] or recorded[:1]
    complete = len(told) == len(recorded) < COMMITS_PER_REPLY
    previous = [-1, *(row.round for row in told)]
    last = told[-1].round if told else head_round
    return wire.Commits(
        commits=[
            _recorded(row, entries, before) for row, before in zip(told, previous, strict=False)
        ],
        decided_round=decided_round if complete else told[-1].round,
        head_round=head_round,
        tail=[
            chain_entry(each.signed) for each in entries if complete and each.after_round == last
        ],
    )


def _shares(shares: Iterable[Share]) -> list[wire.Share]:
    """Some shares."""
    return [wire.Share(first=share.first, count=share.count) for share in shares]


def _trained(recorded: RecordedCommit) -> list[wire.Trained]:
    """The work that the authors of a commit have announced, in the order of its entries."""
    return [wire.Trained(shares=_shares(shares)) for shares in recorded.trained]


def _sum_signed(said: SumSigned) -> wire.SumSigned:
    return wire.SumSigned(
        range=said.number,
        digest=said.digest,
        public_key=said.public_key,
        signature=said.signature,
        silent=said.silent,
    )


def _log_bytes(recorded: RecordedCommit) -> int:
    """Bytes of a commit in a page of the log, about."""
    shares = sum(1 + len(each) for each in recorded.trained)
    signed = sum(SUM_SIGNED_BYTES + 3 * len(each.silent) for each in recorded.signed_sums)
    named = len(recorded.signed.body) + len(recorded.signed.author_list)
    return named + SHARE_BYTES * shares + signed
