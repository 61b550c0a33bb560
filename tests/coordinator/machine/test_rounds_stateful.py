"""Any order of events, honest, stale, doubled or hostile, with jumps of time and restarts. After
each event the referee judges the effects, and every invariant of the state must hold.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from coordinator.machine.events import acts
from coordinator.machine.events.effects import Effect, Refuse
from coordinator.machine.events.inputs import (
    Announced,
    Applied,
    Audited,
    Disconnected,
    Event,
    Heartbeat,
    HeldParts,
    Holding,
    Joined,
    Left,
    NotHeld,
    OfferEnded,
    PartsHeld,
    Ready,
    Restarted,
    Summed,
    SumsOffered,
)
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import orders
from coordinator.machine.screening import is_transient, screened
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.receipts import receipt_name
from tests.coordinator.machine.driver import PEERS, RUN, payload_digest, run_spec, state_digest
from tests.simulation.checkers import Referee, portrait

peers = st.sampled_from(PEERS)
auditors = st.sampled_from([PeerId("a" * 32), PeerId("b" * 32)])
relays = st.sampled_from([PeerId("c" * 32), PeerId("d" * 32)])
adders = st.one_of(peers, relays)
digests = st.integers(0, 3).map(lambda number: sha256(bytes([number])))


class AnyOrder(RuleBasedStateMachine):
    """A machine with a journal of its durable events, as the sequencer keeps it."""

    ALGORITHM: ClassVar[dict[str, Any]] = {}
    """Fields of the run file's section."""
    SUMS: ClassVar[int] = 0

    @initialize(
        overlap=st.integers(0, 1),
        audit_every=st.sampled_from([0, 0, 3]),
        quorum=st.integers(1, 3),
        copies_min=st.integers(0, 2),
        steps=st.integers(1, 12),
        batch=st.sampled_from([1, 7, 32]),
        limits=st.sampled_from([(5000, 1, 1), (20_000, 2, 4), (120_000, 3, 100)]),
    )
    def begin(
        self,
        overlap: int,
        audit_every: int,
        quorum: int,
        copies_min: int,
        steps: int,
        batch: int,
        limits: Any,
    ) -> None:
        lease_ms, strikes, stretch = limits
        self.spec = run_spec(
            schedule={"steps": steps},
            algorithm=self.ALGORITHM,
            rounds={
                "overlap": overlap,
                "audit_every": audit_every,
                "quorum": quorum,
                "copies_min": copies_min,
                "batch_samples_max": batch,
                "stretch": stretch,
                "sums": self.SUMS,
            },
            membership={
                "lease_ms": lease_ms,
                "strikes_to_mute": strikes,
                "members_max": 4,
            },
        )
        self.machine = RunMachine(self.spec, RUN)
        self.referee = Referee(self.machine)
        self.now_ms = 1_000_000
        self.journal: list[tuple[int, Event]] = []
        self.said: list[Effect] = []
        self.differing = 0
        self.everyone_joins()

    def tell(self, event: Event) -> None:
        before = portrait(self.machine)
        event = self.screened(event)
        try:
            effects = self.machine.handle(event, self.now_ms)
        except RemoteProtocolError:
            assert portrait(self.machine) == before, f"a refused {event} has changed the machine"
            return
        self.machine.validate()
        self.referee.saw(event, effects)
        if not is_transient(event, effects):
            self.journal.append((self.now_ms, event))
            self.said += effects
        else:
            assert all(isinstance(effect, Refuse) for effect in effects)

    def screened(self, event: Event) -> Event:
        """The part of an event that is journalled. The rest must change nothing: the machine comes
        to the same state with and without it.
        """
        part = screened(event, self.machine)
        self.differing += part != event
        if part != event and self.differing % 8 == 1:  # a copy costs as much as a hundred events
            states = []
            for each in (event, part):
                machine = RunMachine(self.spec, RUN)
                machine.resume(decode_state(encode_state(self.machine.state)))
                effects = machine.handle(each, self.now_ms)
                states.append((durable_part(machine.state), effects))
            assert states[0] == states[1], f"{event} changes more than {part}"
        return part

    def tell_due(self) -> None:
        passes = 0
        while due := self.machine.due(self.now_ms):
            passes += 1
            assert passes < 50, f"{due} stays due"
            for event in due:
                self.tell(event)

    # ---- time

    @rule()
    def next_instant(self) -> None:
        self.now_ms = max(self.now_ms, self.machine.next_due_ms() or 0)
        self.tell_due()

    @rule(milliseconds=st.sampled_from([1, 400, 1000, 1500, 3000, 30_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.tell_due()

    @rule(milliseconds=st.sampled_from([1, 1500, 10_000]))
    def coordinator_stalls(self, milliseconds: int) -> None:
        """Events in the queue are handled before instants that have become due meanwhile."""
        self.now_ms += milliseconds

    # ---- members

    @rule(peer=peers)
    def says_hello(self, peer: PeerId) -> None:
        self.tell(Joined(peer, ("127.0.0.1:1",), "name", "hardware", "software"))

    @rule(peer=peers)
    def says_ready(self, peer: PeerId) -> None:
        head = self.machine.state.head_round
        voids = self.machine.state.voids.expected(head)
        self.tell(Ready(peer, head, state_digest(head), voids=voids))

    @rule()
    def everyone_joins(self) -> None:
        for peer in PEERS:
            self.says_hello(peer)
            self.says_ready(peer)

    @rule(peer=peers)
    def beats(self, peer: PeerId) -> None:
        self.tell(Heartbeat(peer))

    @rule(peer=peers)
    def loses_its_session(self, peer: PeerId) -> None:
        self.tell(Disconnected(peer))

    @rule(peer=peers)
    def leaves(self, peer: PeerId) -> None:
        self.tell(Left(peer, "goodbye"))

    # ---- rounds, honest

    @rule(peer=peers, newest=st.booleans(), unused=st.integers(0, 3))
    def announces(self, peer: PeerId, newest: bool, unused: int) -> None:
        if undecided_rounds := self.machine.state.undecided:
            undecided = undecided_rounds[-1 if newest else 0]
            asked = undecided.assignments.get(peer)
            leased = sum(share.count for share in asked.shares) if asked else 1
            digest = b"" if asked and asked.muted else payload_digest(peer, undecided.round)
            samples = max(0, leased - unused)
            self.tell(Announced(peer, undecided.round, digest, 100, samples, 700, 2.5))

    @rule(peer=peers, newest=st.booleans())
    def holds_everything(self, peer: PeerId, newest: bool) -> None:
        if undecided_rounds := self.machine.state.undecided:
            undecided = undecided_rounds[-1 if newest else 0]
            held = [
                Digest(payload.digest)
                for author, payload in undecided.announced.items()
                if author != peer
            ]
            self.tell(Holding(peer, undecided.round, tuple(digest for digest in held if digest)))

    @precondition(lambda self: self.machine.state.undecided)
    @rule(newest=st.booleans(), silent=st.sets(peers, max_size=2), deaf=st.sets(peers, max_size=2))
    def a_round_is_worked_on(self, newest: bool, silent: set[PeerId], deaf: set[PeerId]) -> None:
        for peer in PEERS:
            if peer not in silent:
                self.announces(peer, newest, unused=len(silent))
        for peer in PEERS:
            if peer not in deaf:
                self.holds_everything(peer, newest)

    @rule(rounds=st.integers(1, 3))
    def all_is_well(self, rounds: int) -> None:
        for _ in range(rounds):
            self.everyone_joins()
            if self.machine.state.undecided:
                self.a_round_is_worked_on(newest=False, silent=set(), deaf=set())

    @rule(peer=peers, behind=st.integers(0, 3))
    def applies(self, peer: PeerId, behind: int) -> None:
        round = max(0, self.machine.state.head_round - behind)
        voids = self.machine.state.voids.expected(round)
        self.tell(Applied(peer, round, state_digest(round), b"", voids))

    @precondition(lambda self: self.machine.state.voids.rounds)
    @rule(lacking=st.sets(peers, min_size=1), patience_ms=st.sampled_from([0, 1000, 61_000]))
    def lacks_a_payload(self, lacking: set[PeerId], patience_ms: int) -> None:
        round, payloads = max(self.machine.state.voids.rounds.items())
        for peer in sorted(lacking):
            self.tell(NotHeld(peer, round, tuple(sorted(payloads.holders)[:1])))
        self.time_passes(patience_ms)

    # ---- rounds, stale or hostile

    @rule(
        peer=peers,
        round=st.integers(0, 12),
        digest=st.one_of(st.just(b""), digests),
        payload_bytes=st.sampled_from([0, 1, 4096, 4097, 2**47]),
        samples=st.sampled_from([0, 1, 8, 2**47]),
        compute_ms=st.sampled_from([0, 1, 2**47]),
        loss=st.sampled_from([0.0, -1e308, 1e308]),
    )
    def announces_anything(self, peer: PeerId, **fields: Any) -> None:
        self.tell(Announced(peer, **fields))

    @rule(peer=peers, round=st.integers(0, 12), junk=st.lists(digests, max_size=4))
    def holds_anything(self, peer: PeerId, round: int, junk: list[Digest]) -> None:
        self.tell(Holding(peer, round, tuple(junk)))
        self.tell(NotHeld(peer, round, tuple(junk)))

    @rule(
        peer=peers,
        round=st.integers(-1, 12),
        digest=st.sampled_from([0, 1, 2**64 - 1]),
        resyncs=st.sampled_from([0, 1, 2**64 - 1]),
    )
    def reports_anything(self, peer: PeerId, round: int, digest: int, resyncs: int) -> None:
        self.tell(Applied(peer, max(0, round), digest, b""))
        self.tell(Ready(peer, round, digest, resyncs))

    @rule(peer=peers, digest=st.sampled_from([0, 1, 2**64 - 1]))
    def differs_at_the_head(self, peer: PeerId, digest: int) -> None:
        self.reports_anything(peer, self.machine.state.head_round, digest, 2**64 - 1)

    # ---- auditors

    @rule(auditor=auditors, named=st.booleans())
    def the_operator_names_an_auditor_or_takes_it_off(self, auditor: PeerId, named: bool) -> None:
        act = acts.Appoint(auditor) if named else acts.Dismiss(auditor)
        if not orders.objection(act, self.machine):
            self.tell(acts.ordered(act, 1_700_000_000, self.machine.state.operator.head))

    @rule(auditor=auditors, behind=st.integers(0, 3), right=st.sampled_from([True, True, False]))
    def an_auditor_says_its_word(self, auditor: PeerId, behind: int, right: bool) -> None:
        round = max(-1, self.machine.state.head_round - behind)
        digest = state_digest(round) if right else 0
        voids = self.machine.state.voids.expected(round)
        self.tell(Audited(auditor, round, digest, b"", voids))

    @rule(auditor=auditors)
    def an_auditor_holds_everything(self, auditor: PeerId) -> None:
        self.holds_everything(auditor, newest=True)

    # ---- restarts

    @rule(outage_ms=st.sampled_from([0, 1, 5000, 100_000]))
    def restarts(self, outage_ms: int) -> None:
        replayed = self.replay()
        self.machine = self.referee.machine = replayed
        self.now_ms += outage_ms
        self.tell(Restarted())

    def replay(self) -> RunMachine:
        """A fresh machine after the journal; it must be this one and have said the same."""
        machine, said = RunMachine(self.spec, RUN), list[Effect]()
        for at_ms, event in self.journal:
            said += machine.handle(event, at_ms)
        assert repr(said) == repr(self.said)
        assert portrait(machine, with_leases=False) == portrait(self.machine, with_leases=False)
        return machine

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.replay()


class AnyOrderOfMixing(AnyOrder):
    """The same of nodes that mix parameters."""

    ALGORITHM: ClassVar[dict[str, Any]] = {"name": "gossip-adam", "mixing": {"mean_every": 3}}


class AnyOrderOfSums(AnyOrder):
    """The same where summers add, members and relays: they hold parts, and sign right and wrong
    sums.
    """

    ALGORITHM: ClassVar[dict[str, Any]] = {"name": "local_steps"}
    SUMS: ClassVar[int] = 2

    @rule(peer=peers, newest=st.booleans())
    def holds_everything(self, peer: PeerId, newest: bool) -> None:
        super().holds_everything(peer, newest)
        if undecided_rounds := self.machine.state.undecided:
            self.holds_parts(peer, undecided_rounds[-1 if newest else 0].round, PEERS, 2**64 - 1)

    @rule(
        peer=adders,
        round=st.integers(0, 3),
        authors=st.lists(peers, max_size=4, unique=True),
        ranges=st.sampled_from([0, 1, 2**8 - 1, 2**64 - 1]),
        named=st.sampled_from([None, *PEERS]),
    )
    def holds_parts(
        self,
        peer: PeerId,
        round: int,
        authors: Sequence[PeerId],
        ranges: int,
        named: PeerId | None = None,
    ) -> None:
        digests = ((named or each, payload_digest(each, round)) for each in authors)
        held = (HeldParts(receipt_name(*each), ranges) for each in digests)
        self.tell(PartsHeld(peer, round, tuple(held)))

    @precondition(lambda self: any(each.is_closed for each in self.machine.state.undecided))
    @rule(silent=st.sets(adders, max_size=2), liars=st.sets(adders, max_size=2))
    def summers_add(self, silent: set[PeerId], liars: set[PeerId]) -> None:
        for undecided in list(self.machine.state.undecided):
            sums = undecided.sums
            if sums is None or sums.adding is None:
                continue
            rate = sums.adding.learning_rate_bits
            for number, asked in enumerate(sums.asked):
                for peer in [peer for peer in asked if peer not in silent]:
                    self.signs(peer, undecided.round, number, peer in liars, rate)

    @rule(
        peer=adders,
        round=st.integers(0, 3),
        number=st.integers(-1, 70),
        lies=st.booleans(),
        rate=st.integers(0, 2),
    )
    def signs(self, peer: PeerId, round: int, number: int, lies: bool, rate: int) -> None:
        digest = sha256(b"%d %d %d" % (round, number, lies))
        self.tell(Summed(peer, round, number, digest, 9, rate, b"", b""))

    @rule(relay=adders, instance=st.sampled_from([0, 1, 1, 2]))
    def a_relay_offers_to_add(self, relay: PeerId, instance: int) -> None:
        self.tell(SumsOffered(relay, "relay", instance))

    @rule(relay=adders)
    def a_relay_goes(self, relay: PeerId) -> None:
        self.tell(OfferEnded(relay))

    @rule(relay=relays)
    def a_relay_beats(self, relay: PeerId) -> None:
        self.tell(Heartbeat(relay))

    @rule(rounds=st.integers(1, 2))
    def all_is_well(self, rounds: int) -> None:
        for _ in range(rounds):
            super().all_is_well(1)
            for undecided in self.machine.state.undecided:
                for relay in self.machine.state.relays.here():
                    self.holds_parts(relay, undecided.round, PEERS, 2**64 - 1)
            if any(each.is_closed for each in self.machine.state.undecided):
                self.summers_add(set(), set())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=60,
    stateful_step_count=60,
)
TestAnyOrderOfMixing = AnyOrderOfMixing.TestCase
TestAnyOrderOfMixing.settings = settings(TestAnyOrder.settings, max_examples=25)
TestAnyOrderOfSums = AnyOrderOfSums.TestCase
TestAnyOrderOfSums.settings = settings(TestAnyOrder.settings, max_examples=25)
