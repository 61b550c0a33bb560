"""Decisions in order, from the session or fetched, each checked."""

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.decisions import DecisionLog
from node.replica.position import Position
from protocol import wire_pb2 as wire
from protocol.codec.chain import Reschedule, Restart, Void, entry_digest, sign_entry
from protocol.codec.commits import Commit, Entry, commit_digest, genesis_digest, sign_commit
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.limits import COMMITS_PER_REPLY

RUN = RunId("ab" * 16)
AUTHOR = PeerId("cd" * 16)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def payload_of(round: int) -> Digest:
    return sha256(str(round).encode())


class Log:
    """A coordinator's log: `decide` appends commits and skips."""

    def __init__(self) -> None:
        self.head: Digest = genesis_digest(RUN)
        self.commits: dict[int, wire.Committed] = {}
        self.decided = -1
        self.fetches: list[int] = []
        self.entries: list[wire.ChainEntry] = []
        """Entries of the chain behind the newest commit."""

    def decide(
        self, committed: bool = True, *, key: Ed25519PrivateKey = KEY
    ) -> wire.RoundCommitted | None:
        self.decided += 1
        if not committed:
            return None
        entry = Entry(AUTHOR, payload_of(self.decided), 100, 1, 1)
        commit = Commit(RUN, self.decided, len(self.commits), (entry,), 1, 2, self.head)
        self.head = commit_digest(commit)
        signed = sign_commit(commit, key)
        message = wire.Committed(
            body=signed.body, signature=signed.signature, state_digest=7, digest_reports=2
        )
        message.before.extend(self.entries)
        self.entries = []
        self.commits[self.decided] = message
        return wire.RoundCommitted(commit=message, holders=[wire.Holders(peer_ids=[AUTHOR])])

    def void(self, round: int) -> wire.ChainEntry:
        """The payload of a commit counts for nothing from now on."""
        void = Void(RUN, round, payload_of(round), "nobody has it", self.head)
        self.head = entry_digest(void)
        signed = sign_entry(void, KEY)
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
        self.entries.append(entry)
        self.commits[round].voids.append(entry)
        return entry

    def restart(self) -> wire.ChainEntry:
        """The run goes on from a checkpoint from now on."""
        restart = Restart(RUN, max(self.commits), sha256(b"parameters"), 2**63, self.head)
        self.head = entry_digest(restart)
        signed = sign_entry(restart, KEY)
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
        self.entries.append(entry)
        return entry

    def reschedule(self) -> wire.ChainEntry:
        """The run has another length from now on."""
        round = max(self.commits, default=-1)
        entry = Reschedule(RUN, round, len(self.commits), 99, 0x3B449BA6, self.head)
        self.head = entry_digest(entry)
        signed = sign_entry(entry, KEY)
        message = wire.ChainEntry(body=signed.body, signature=signed.signature)
        self.entries.append(message)
        return message

    async def fetch(self, after_round: int) -> wire.Commits:
        self.fetches.append(after_round)
        rounds = [round for round in sorted(self.commits) if round > after_round][
            :COMMITS_PER_REPLY
        ]
        return wire.Commits(
            commits=[self.commits[round] for round in rounds],
            decided_round=self.decided,
            tail=self.entries if len(rounds) < COMMITS_PER_REPLY else [],
        )


def decision_log_of(log: Log) -> DecisionLog:
    return DecisionLog(RUN, public_bytes(KEY), log.fetch)


async def taken(decisions: DecisionLog) -> list[tuple[int, bool]]:
    found = []
    while decisions.behind():
        decision = await decisions.next()
        found.append((decision.round, decision.commit is not None))
    return found


async def test_decisions_of_the_session_come_in_order_without_a_fetch() -> None:
    log = Log()
    decisions = decision_log_of(log)
    for committed in (True, False, True):
        message = log.decide(committed)
        if message:
            decisions.committed(message)
        else:
            decisions.skipped(wire.RoundSkipped(round=log.decided, reason="quorum"))
    assert await taken(decisions) == [(0, True), (1, False), (2, True)]
    assert log.fetches == []
    assert (decisions.next_round, decisions.place.head, decisions.head_round) == (3, log.head, 2)


async def test_decisions_that_no_session_told_are_fetched_with_the_skips_between() -> None:
    log = Log()
    for number in range(3 * COMMITS_PER_REPLY):
        log.decide(number % 3 != 1)
    decisions = decision_log_of(log)
    decisions.saw_decided(log.decided)
    assert await taken(decisions) == [
        (number, number % 3 != 1) for number in range(3 * COMMITS_PER_REPLY)
    ]
    assert decisions.place.head == log.head
    assert (
        len(log.fetches) == 2
    )  # two thirds of the rounds have commits, each reply holds COMMITS_PER_REPLY


async def test_fetched_decisions_carry_the_recorded_digest_and_no_holders() -> None:
    log = Log()
    log.decide()
    decisions = decision_log_of(log)
    decisions.saw_decided(0)
    decision = await decisions.next()
    assert decision.recorded_digest == 7
    assert decision.holders == ((),)


async def test_a_gap_before_the_decisions_of_the_session_is_closed() -> None:
    log = Log()
    decisions = decision_log_of(log)
    log.decide()
    log.decide(False)
    late = log.decide()
    assert late is not None
    decisions.committed(late)
    assert await taken(decisions) == [(0, True), (1, False), (2, True)]


async def test_a_decision_told_twice_counts_once() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message is not None
    decisions.committed(message)
    decisions.committed(message)
    assert await taken(decisions) == [(0, True)]
    decisions.committed(message)
    assert not decisions.behind()


async def test_next_waits_until_the_round_is_decided() -> None:
    log = Log()
    decisions = decision_log_of(log)
    waiting = asyncio.create_task(decisions.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    message = log.decide()
    assert message is not None
    decisions.committed(message)
    assert (await waiting).round == 0


async def test_a_commit_of_another_key_is_refused() -> None:
    log = Log()
    message = log.decide(key=Ed25519PrivateKey.generate())
    assert message is not None
    with pytest.raises(RemoteProtocolError, match="signed by this run's coordinator"):
        decision_log_of(log).committed(message)


async def test_a_commit_that_does_not_follow_the_last_one_is_refused() -> None:
    log = Log()
    log.decide()
    del log.commits[0]  # the log pretends that round 0 was skipped
    second = log.decide()
    assert second is not None
    decisions = decision_log_of(log)
    decisions.saw_decided(1)
    assert (await decisions.next()).commit is None
    with pytest.raises(RemoteProtocolError, match="does not follow"):
        await decisions.next()


async def test_a_ledger_resumes_behind_a_saved_state() -> None:
    log = Log()
    log.decide()
    saved = Position(1, log.head, 0)
    log.decide()
    decisions = decision_log_of(log)
    decisions.resume(saved)
    decisions.saw_decided(log.decided)
    assert await taken(decisions) == [(1, True)]


async def test_rewinding_replays_from_genesis() -> None:
    log = Log()
    log.decide()
    log.decide()
    decisions = decision_log_of(log)
    decisions.saw_decided(1)
    first = await taken(decisions)
    decisions.rewind()
    assert await taken(decisions) == first


# ---- voids


async def test_a_replay_passes_over_a_payload_that_became_void_later() -> None:
    log = Log()
    log.decide()
    log.decide()
    log.void(0)
    log.decide()
    decisions = decision_log_of(log)
    decisions.saw_decided(log.decided)
    found = [await decisions.next() for _ in range(3)]
    assert [decision.kept for decision in found] == [[], [payload_of(1)], [payload_of(2)]]
    assert found[0].filled([], AUTHOR) == [b""]
    assert found[0].wanted(AUTHOR)[0].entries == ()
    assert (decisions.outdated, decisions.place.void_count, decisions.place.voids) == (
        "",
        1,
        frozenset(),
    )
    assert decisions.place.head == log.head


async def test_a_void_is_known_ahead_of_its_place_in_the_chain_also_after_a_restart() -> None:
    log = Log()
    log.decide()
    log.decide()
    log.void(0)
    log.decide()
    decisions = decision_log_of(log)
    decisions.saw_decided(log.decided)
    await decisions.next()
    decisions.settled()
    place = decisions.place
    assert place.voids == {(0, payload_of(0))}
    again = decision_log_of(log)
    again.resume(place)
    again.saw_decided(log.decided)
    await taken(again)
    assert (again.outdated, again.place.void_count, again.place.voids) == ("", 1, frozenset())


async def test_a_void_that_comes_while_its_payloads_are_collected_ends_the_wait() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    decision = await decisions.next()
    waiting = asyncio.create_task(decisions.changed(decision))
    await asyncio.sleep(0)
    assert not waiting.done()
    decisions.chained([log.void(0)])
    await waiting
    decision = decisions.again(decision)
    assert (decision.kept, decisions.outdated) == ([], "")
    assert (decisions.place.head, decisions.place.void_count) == (log.head, 1)
    decisions.settled()
    assert decisions.outdated == ""


async def test_a_void_for_a_round_that_was_applied_makes_the_state_outdated() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    await decisions.next()
    decisions.settled()
    decisions.chained([log.void(0)])
    assert "round 0" in decisions.outdated
    decisions.rewind()
    assert decisions.outdated == ""
    assert (await decisions.next()).kept == []
    assert decisions.outdated == ""


@pytest.mark.parametrize("told", [True, False])
async def test_a_void_that_was_missed_is_found_before_the_next_commit(told: bool) -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    await decisions.next()
    decisions.settled()
    log.void(0)
    message = log.decide()
    assert message
    if told:
        decisions.committed(message)
    else:
        decisions.saw_decided(log.decided)
    await decisions.next()
    assert "round 0" in decisions.outdated


async def test_a_commit_that_leaves_out_a_void_breaks_the_chain() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    await decisions.next()
    log.void(0)
    log.entries = []
    message = log.decide()
    assert message
    decisions.committed(message)
    with pytest.raises(RemoteProtocolError, match="does not follow the one before it"):
        await decisions.next()


async def test_a_void_of_another_key_is_refused() -> None:
    log = Log()
    log.decide()
    entry = log.void(0)
    other = public_bytes(Ed25519PrivateKey.from_private_bytes(b"x" * 32))
    with pytest.raises(RemoteProtocolError, match="signed by this run's coordinator"):
        DecisionLog(RUN, other, log.fetch).chained([entry])


# ---- restarts from a checkpoint


def walker_of(log: Log) -> DecisionLog:
    walker = DecisionLog(RUN, public_bytes(KEY), log.fetch, walks=True)
    walker.saw_decided(log.decided)
    return walker


async def walked(walker: DecisionLog) -> None:
    while walker.behind():
        await walker.next()
        walker.settled()


async def test_the_log_stops_before_a_restart_until_the_checkpoint_stands() -> None:
    log = Log()
    decisions = decision_log_of(log)
    for _ in range(2):
        message = log.decide()
        assert message
        decisions.committed(message)
    assert len(await taken(decisions)) == 2
    assert decisions.restart is None
    before = decisions.place
    decisions.chained([log.restart()])
    assert decisions.restart is not None
    assert decisions.restart.round == 1
    assert decisions.place == before, "the state is not the checkpoint's yet"
    message = log.decide()
    assert message
    decisions.committed(message)
    await decisions.next()
    assert decisions.place == before, "no decision is taken by a state that is to be replaced"
    walker = walker_of(log)
    await walked(walker)
    ((restart, place),) = walker.passed
    decisions.resume(place)
    assert decisions.restart is None
    assert (place.next_round, place.head_round, place.void_count) == (2, 1, 1)
    assert (place.head, restart.sha256) == (entry_digest(restart), sha256(b"parameters"))
    assert await taken(decisions) == [(2, True)]
    assert decisions.place.head == log.head
    decisions.rewind()
    assert decisions.restart == restart, "a state of genesis is to be replaced too"


async def test_a_restart_that_was_missed_is_known_with_the_first_page_of_the_log() -> None:
    log = Log()
    for _ in range(3):
        log.decide()
    log.void(1)
    log.decide(False)
    log.restart()
    log.decide()
    decisions = decision_log_of(log)
    decisions.saw_decided(log.decided)
    for _ in range(2):  # however often it is asked
        await decisions.next()
        assert decisions.restart is not None
        assert decisions.restart.round == 2
        assert decisions.place.next_round == 0
    walker = walker_of(log)
    await walked(walker)
    ((_, place),) = walker.passed
    assert (place.next_round, place.head_round, place.void_count) == (3, 2, 2)
    assert walker.place.head == log.head


async def test_a_restart_ends_the_wait_for_payloads_that_nobody_has() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    decision = await decisions.next()
    waiting = asyncio.create_task(decisions.changed(decision))
    await asyncio.sleep(0)
    assert not waiting.done()
    decisions.chained([log.restart()])
    await asyncio.wait_for(waiting, 20)


async def test_of_two_restarts_the_newer_one_counts_also_without_a_round_between() -> None:
    log = Log()
    log.decide()
    first, second = log.restart(), log.restart()
    decisions = decision_log_of(log)
    decisions.chained([first])
    older = decisions.restart
    decisions.chained([first, second])
    assert decisions.restart not in (None, older)
    walker = walker_of(log)
    walker.know(decisions)
    await walked(walker)
    assert [place.void_count for _, place in walker.passed] == [1, 2]
    decisions.resume(walker.passed[0][1])
    assert decisions.restart is not None
    decisions.resume(walker.passed[1][1])
    assert decisions.restart is None


# ---- changes of the schedule


@pytest.mark.parametrize("told", [False, True])
async def test_a_change_of_the_schedule_lies_in_the_chain_and_changes_no_state(told: bool) -> None:
    log = Log()
    decisions = decision_log_of(log)
    entry = log.reschedule()
    if told:
        decisions.chained([entry])
    message = log.decide(True)
    assert message
    decisions.committed(message)
    assert await taken(decisions) == [(0, True)]
    decisions.settled()
    entry = log.reschedule()
    decisions.chained([entry])
    assert (decisions.place.head, decisions.outdated, decisions.restart) == (log.head, "", None)
    assert decisions.place.void_count == 0


async def test_a_change_of_the_schedule_behind_a_restart_does_not_bring_the_restart_back() -> None:
    log = Log()
    decisions = decision_log_of(log)
    message = log.decide(True)
    assert message
    decisions.committed(message)
    await taken(decisions)
    decisions.settled()
    decisions.chained([log.restart()])
    assert decisions.restart
    walker = DecisionLog(RUN, public_bytes(KEY), log.fetch, walks=True)
    walker.resume(decisions.place)
    walker.know(decisions)
    ((_, place),) = walker.passed
    decisions.resume(place)
    decisions.chained([log.reschedule()])
    assert decisions.restart is None
    assert decisions.place.head == log.head
