"""Judges are judged: each planted bug must be found by one of the first seeds, with the words that
name it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.machine.events.effects import CommitRound
from coordinator.machine.events.inputs import Announced
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import announcing, deciding, samples, voiding
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.run import Run
from coordinator.machine.state.undecided_round import UndecidedRound, unused_part, used_part
from coordinator.sequencer import Outcome, Sequencer
from node.control.decisions import DecisionLog
from node.gossip.machine.events import Found, Offered
from node.gossip.machine.exchange import Exchange
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm
from node.round import compute
from node.round.context import RoundContext
from node.round.deadline import Deadline
from node.round.own_payloads import OwnPayloads
from protocol import wire_pb2 as wire
from protocol.codec.commits import sign_commit
from protocol.ids import Digest, sha256
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share
from tests.simulation import party, scenario, stand_in
from tests.simulation.checkers import Violation
from tests.simulation.faults import Faults
from tests.simulation.movements import Work
from tests.simulation.scenario import Scenario
from tests.simulation.stand_in import Replica

SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


# ---- in the coordinator


def copies_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UndecidedRound, "available", lambda flight, *arguments: flight.payloads())


def the_quorum_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = deciding.decide
    patch.setattr(
        deciding,
        "decide",
        lambda undecided, run, now_ms: with_rounds(right, undecided, run, now_ms, quorum=0),
    )


def with_rounds(
    decide: Callable[..., Any], undecided: Any, run: Run, now_ms: int, **fields: int
) -> Any:
    """Decide while the run file says something else."""
    spec = run.spec
    run.spec = spec.model_copy(update={"rounds": spec.rounds.model_copy(update=fields)})
    try:
        return decide(undecided, run, now_ms)
    finally:
        run.spec = spec


def the_late_are_heard(patch: pytest.MonkeyPatch) -> None:
    """A stale announcement counts."""
    right = announcing.is_news

    def is_news(said: Announced, run: Run) -> bool:
        flight = run.state.undecided_round(said.round)
        if flight is None:
            return right(said, run)
        reached, flight.reached = flight.reached, "bell"
        news = right(said, run)
        flight.reached = reached
        return news

    patch.setattr(announcing, "is_news", is_news)


def the_second_word_of_a_round_counts(patch: pytest.MonkeyPatch) -> None:
    """What a member announces later takes the place of what it announced first."""
    right, is_news = announcing.take, announcing.is_news

    def take(said: Announced, run: Run, now_ms: int) -> Any:
        flight = run.state.undecided_round(said.round)
        if flight and said.peer in flight.announced:
            flight.announced[said.peer] = said
            flight.receipts.hold(said.peer, (Digest(said.digest),), now_ms)
        return right(said, run, now_ms)

    def again(said: Announced, run: Run) -> bool:
        flight = run.state.undecided_round(said.round)
        return bool(flight and said.peer in flight.announced) or is_news(said, run)

    patch.setattr(announcing, "take", take)
    patch.setattr(announcing, "is_news", again)


def unused_samples_vanish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(announcing, "unused_part", lambda shares, samples: [])


def samples_are_trained_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(announcing, "unused_part", lambda shares, samples: list(shares))


def left_out_samples_vanish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(samples, "leave_out", lambda shares, run: None)


def left_out_samples_return_twice(patch: pytest.MonkeyPatch) -> None:
    right = samples.leave_out

    def leave_out(shares: Sequence[Share], run: Run) -> None:
        right(shares, run)
        run.state.order.returned += shares

    patch.setattr(samples, "leave_out", leave_out)


def counted_payloads_samples_return(patch: pytest.MonkeyPatch) -> None:
    right = samples.settle

    def settle(undecided: UndecidedRound, counted: Any, run: Run) -> None:
        right(undecided, counted, run)
        for payload in counted:
            shares = undecided.assignments[payload.peer].shares
            samples.leave_out(used_part(shares, payload.samples), run)

    patch.setattr(samples, "settle", settle)


def void_samples_vanish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(samples, "take_out", lambda *arguments: None)


def the_record_names_other_samples(patch: pytest.MonkeyPatch) -> None:
    """Those that the author was leased and did not use."""
    patch.setattr(
        UndecidedRound,
        "trained",
        lambda flight, entries: tuple(
            tuple(unused_part(flight.assignments[entry.author].shares, entry.samples))
            for entry in entries
        ),
    )


def the_chain_does_not_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "commit_digest", lambda commit: sha256(b"always"))


def a_commit_is_not_sorted(patch: pytest.MonkeyPatch) -> None:
    right = UndecidedRound.available
    patch.setattr(UndecidedRound, "available", lambda *arguments: list(reversed(right(*arguments))))


def a_round_is_decided_twice(patch: pytest.MonkeyPatch) -> None:
    right = RunMachine._advance

    def advance(machine: RunMachine, now_ms: int) -> Any:
        effects = right(machine, now_ms)
        words = [effect for effect in effects if isinstance(effect, CommitRound)]
        return [*effects, *words] if machine.state.totals.committed % 5 == 4 else effects

    patch.setattr(RunMachine, "_advance", advance)


def a_heartbeat_revives(patch: pytest.MonkeyPatch) -> None:
    """A lease that ran out comes back to life with the next sign of life."""
    right, gone = Membership.renew, dict[int, dict[str, Any]]()
    lapse = Membership.lapse

    def remembering(members: Membership, peer: Any, now_ms: int) -> bool:
        if peer in members.roster:
            gone.setdefault(id(members), {})[peer] = members.roster[peer]
        return lapse(members, peer, now_ms)

    def renew(members: Membership, peer: Any, now_ms: int) -> None:
        if peer not in members.roster and peer in gone.get(id(members), {}):
            members.roster[peer] = gone[id(members)].pop(peer)
        right(members, peer, now_ms)

    patch.setattr(Membership, "lapse", remembering)
    patch.setattr(Membership, "renew", renew)


def effects_leave_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    right = Sequencer._record

    def record(core: Sequencer, batch: Any) -> Any:
        signed = {
            effect.commit.round: sign_commit(effect.commit, core._key)
            for effect in batch.effects
            if isinstance(effect, CommitRound)
        }
        core._emit(Outcome(tuple(batch.effects), signed))
        return right(core, batch)

    patch.setattr(Sequencer, "_record", record)


def heartbeats_decide_something(patch: pytest.MonkeyPatch) -> None:
    right = Membership.renew

    def renew(members: Membership, peer: Any, now_ms: int) -> None:
        right(members, peer, now_ms)
        members.note_punctual(peer)

    patch.setattr(Membership, "renew", renew)


def the_newest_is_decided_first(patch: pytest.MonkeyPatch) -> None:
    right = RunMachine._advance

    def advance(machine: RunMachine, now_ms: int) -> Any:
        machine.state.undecided.reverse()
        effects = right(machine, now_ms)
        machine.state.undecided.sort(key=lambda flight: flight.round)
        return effects

    patch.setattr(RunMachine, "_advance", advance)


# ---- in the node


def the_last_share_is_trained_first(patch: pytest.MonkeyPatch) -> None:
    right = compute._batches

    def batches(context: RoundContext, opened: wire.RoundOpened) -> Iterator[Any]:
        turned = wire.RoundOpened()
        turned.CopyFrom(opened)
        del turned.shares[:]
        turned.shares.extend(reversed(opened.shares))
        return right(context, turned)

    patch.setattr(compute, "_batches", batches)


def what_was_left_out_is_said_again(patch: pytest.MonkeyPatch) -> None:
    """An author puts back what a commit leaves out, though its samples are leased again."""
    right = stand_in.Replica.extract
    settle, put_back = OwnPayloads.settle, dict[str, tuple[int, ...]]()

    def settled(own: OwnPayloads, round: int) -> Any:
        if announced := settle(own, round):
            peer, auditor = own._context.own, own._context.replica._auditor
            commit = auditor.commit_of(round)
            kept = [entry.digest for entry in commit.entries] if commit else []
            if announced.digest not in kept:
                put_back[peer] = put_back.get(peer, ()) + auditor.trained.get((peer, round), ())
        return announced

    def extract(replica: stand_in.Replica, round: int, *, mean: bool = False) -> Any:
        found = right(replica, round)
        again = put_back.pop(replica.peer, ())
        positions = tuple(sorted({*found.positions, *again}))
        return dataclasses.replace(found, positions=positions)

    patch.setattr(OwnPayloads, "settle", settled)
    patch.setattr(stand_in.Replica, "extract", extract)


def an_older_state_is_taken_for_the_newest(patch: pytest.MonkeyPatch) -> None:
    """A node with a file from before its kill passes over what it has applied since."""
    right, newest = stand_in.Replica.load, dict[str, Any]()
    save = stand_in.Replica.save

    def saved(replica: stand_in.Replica, disk: Any, position: Any) -> None:
        newest[replica.peer] = position
        save(replica, disk, position)

    def load(replica: stand_in.Replica, disk: Any) -> Any:
        position = right(replica, disk)
        return position and max(newest[replica.peer], position, key=lambda each: each.next_round)

    patch.setattr(stand_in.Replica, "save", saved)
    patch.setattr(stand_in.Replica, "load", load)


def words_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """The log of decisions passes over a word: later commits are applied in its place."""
    right, turn = DecisionLog.next, itertools.count(1)

    async def after(decisions: DecisionLog) -> Any:
        word = await right(decisions)
        return await right(decisions) if next(turn) % 20 == 0 and decisions.behind() else word

    patch.setattr(DecisionLog, "next", after)


def the_snapshot_is_of_another_round(patch: pytest.MonkeyPatch) -> None:
    right = stand_in.Replica.adopt

    def adopt(replica: stand_in.Replica, snapshot: Any, base: Any = None) -> int:
        head, before = replica.head_round, replica._raw.copy()
        digest = right(replica, snapshot)
        if head >= 0:
            replica._raw[:] = before  # the file of an older one was lying there
        return digest

    patch.setattr(stand_in.Replica, "adopt", adopt)


def offers_come_before_the_digest_is_checked(patch: pytest.MonkeyPatch) -> None:
    right = Exchange.handle

    def handle(exchange: Exchange, event: Any, now_ms: int) -> Any:
        effects = right(exchange, event, now_ms)
        if isinstance(event, Offered):
            effects = effects + right(
                exchange, Found(event.round, event.digest, event.size), now_ms
            )
        return effects

    patch.setattr(Exchange, "handle", handle)


def bytes_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    right = PayloadLog.put

    def put(log: PayloadLog, round: int, blob: bytes, expected: Digest | None = None) -> Digest:
        if expected is None:
            return right(log, round, blob)
        right(log, round, blob)
        log._entries[expected] = log._entries[sha256(blob)]
        log._cache[expected] = bytes(blob)
        return expected

    patch.setattr(PayloadLog, "put", put)


def it_is_announced_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    async def publish(swarm: Swarm, round: int, blob: bytes, samples: int = 0) -> Digest:
        swarm._offers.announcements.make(round, sha256(blob), len(blob), samples)
        swarm._background.spawn_write(swarm._keep(round, sha256(blob), blob))
        return sha256(blob)

    patch.setattr(Swarm, "publish", publish)


def patience_has_no_end(patch: pytest.MonkeyPatch) -> None:
    """A node that is to end waits for payloads that nobody has any more."""
    patch.setattr(Deadline, "limit", lambda deadline, milliseconds: None)


def nothing_is_ever_void(patch: pytest.MonkeyPatch) -> None:
    """A commit of a payload that nobody has stops the run."""
    patch.setattr(voiding, "plan", lambda *arguments: None)


def everybody_weighs_alike(patch: pytest.MonkeyPatch) -> None:
    """A commit weighs authors of local steps as it weighs votes."""
    patch.setattr(AlgorithmSpec, "weight_of", lambda spec, samples: 1)


def scales_forget_the_samples(patch: pytest.MonkeyPatch) -> None:
    """An author's scale is that of one step, whatever it trained."""
    right = Replica._scale_code

    def scale_code(replica: Replica, round: int) -> int:
        right(replica, round)
        return Work(1, 0.0008).code_max(replica._algorithm, replica.shape.top_k)

    patch.setattr(Replica, "_scale_code", scale_code)


LOCAL_STEPS: list[tuple[Plant, str]] = [
    (everybody_weighs_alike, "weighs .* by 1 samples, expected"),
    (scales_forget_the_samples, "has scales .* which trained Work"),
    (what_was_left_out_is_said_again, "the payload of .* holds .*, it trained|a second time"),
]
"""Bugs of runs with local steps."""

PLANTED: list[tuple[Plant, str]] = [
    (copies_are_not_counted, "is held by"),
    (the_quorum_is_forgotten, "is below the quorum"),
    (the_late_are_heard, "positions|trained and lost|did not announce in time"),
    (unused_samples_vanish, "out of turn|returned positions"),
    (samples_are_trained_twice, "returned positions|out of turn|second time"),
    (left_out_samples_vanish, "returned positions|out of turn|trained and lost"),
    (left_out_samples_return_twice, "returned positions|out of turn"),
    (counted_payloads_samples_return, "returned positions|out of turn|a second time"),
    (void_samples_vanish, "returned positions|out of turn|trained and lost"),
    (the_record_names_other_samples, "trained .*, the record"),
    (the_chain_does_not_move, "does not follow the one before it"),
    (a_commit_is_not_sorted, "names authors"),
    (a_round_is_decided_twice, "is decided|does not follow"),
    (a_heartbeat_revives, "members differ|is no member|a replay says"),
    (effects_leave_before_the_journal, "effects leave before"),
    (heartbeats_decide_something, "a replay says|does not rebuild|does not replay"),
    (the_newest_is_decided_first, "is decided, expected round"),
    (the_last_share_is_trained_first, "the record .* names the samples .* which trained"),
    (what_was_left_out_is_said_again, "the payload of .* holds .*, it trained|a second time"),
    (an_older_state_is_taken_for_the_newest, "applies out of order"),
    (the_second_word_of_a_round_counts, "is not what was said"),
    (words_are_not_checked, "applies out of order"),
    (
        the_snapshot_is_of_another_round,
        "adopts a snapshot|applies out of order|saved the state of round",
    ),
    (offers_come_before_the_digest_is_checked, "has not verified"),
    (bytes_are_not_verified, "other bytes|decode|not verified"),
    (it_is_announced_before_it_is_kept, "no commit in|still without"),
    (patience_has_no_end, "asked to leave"),
    (nothing_is_ever_void, "no commit in"),
]


@dataclass(frozen=True, slots=True)
class Aim:
    """What scenarios are like that meet a bug often."""

    faults: tuple[str, ...] = Faults.KINDS
    restart_ms: tuple[int, int] = party.SUPERVISOR_MS
    farewells: float = scenario.FAREWELLS
    voids: bool = True
    """Whether a lost payload becomes void, which heals what the bug does."""

    def take(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Faults, "KINDS", self.faults)
        patch.setattr(party, "SUPERVISOR_MS", self.restart_ms)
        patch.setattr(scenario, "FAREWELLS", self.farewells)
        if not self.voids:
            nothing_is_ever_void(patch)


AIMS = {
    the_snapshot_is_of_another_round: Aim(
        ("kill", "cut_off", "cut_from_coordinator"), restart_ms=(6_000, 12_000)
    ),
    it_is_announced_before_it_is_kept: Aim(("kill_in_write", "fill_disk"), voids=False),
    nothing_is_ever_void: Aim(("poison",)),
    patience_has_no_end: Aim(farewells=1.0),
}
"""For bugs that not every scenario meets: among all faults the search would take minutes."""


RARE = {
    patience_has_no_end,
    it_is_announced_before_it_is_kept,
    the_late_are_heard,
    heartbeats_decide_something,
    unused_samples_vanish,
    the_snapshot_is_of_another_round,
    the_second_word_of_a_round_counts,
    void_samples_vanish,
}
"""Bugs that few seeds meet: their search takes six seconds to half a minute."""


def run_seeds(*, local_steps: bool = False) -> None:
    for seed in range(SEEDS):
        Scenario(seed, local_steps=local_steps).run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        pytest.param(plant, words, marks=pytest.mark.slow if plant in RARE else ())
        for plant, words in PLANTED
    ],
    ids=[plant.__name__ for plant, _ in PLANTED],
)
def test_a_planted_bug_is_found(plant: Plant, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    AIMS.get(plant, Aim()).take(monkeypatch)
    # the machine's own invariants would find some of them before the judges
    monkeypatch.setattr(RunMachine, "validate", lambda machine: None)
    with pytest.raises(Violation, match=words):
        run_seeds()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plant", "words"), LOCAL_STEPS)
def test_a_bug_planted_in_a_run_with_local_steps_is_found(
    plant: Plant, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=words):
        run_seeds(local_steps=True)


def test_a_violation_names_its_seed_and_shows_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    copies_are_not_counted(monkeypatch)
    with pytest.raises(
        Violation, match=r"(?s)^seed \d+: round .*event Announced.*coordinator decided round"
    ) as caught:
        run_seeds()
    assert "-> CommitRound" in str(caught.value)
