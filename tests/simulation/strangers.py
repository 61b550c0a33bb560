"""A public run among strangers: honest nodes that the operator vouches for, and hostile members.

No other fault is made, so that what it costs is what the strangers cost: the same seed without them
is the quiet run. Where the operator is busy and the coordinator is killed (`operating`), that is so
in both. The checkers judge invariants 8 to 10 of the design:

- apply is total: no honest node ends, and in the end all have every commit;
- free keys decide nothing: every commit has a quorum of members with standing and names no payload
  that no honest node made; no honest node is removed or told to start over;
- an operator's acts hold from the moment they are in the journal, over restarts too;
- silence is cheap: at least nine tenths of the quiet run's commits are made.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Ordered, Salted, Vouched, first_digest, flaw
from coordinator.machine.events.effects import AskResync, Effect, Evict, RecordDigest
from coordinator.machine.events.inputs import Event, Lapsed
from coordinator.machine.rules.judging import LEVEL
from node.links.frames import PART_BYTES_MAX
from protocol.codec.chain import Restart
from protocol.codec.commits import Commit
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from tests.simulation.audited import NamedAuditor, appointment
from tests.simulation.auditor import Auditor
from tests.simulation.checkers import Referee, Violation, require
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.faults import WEATHERS
from tests.simulation.hostile import KINDS, HostileMember, Ring
from tests.simulation.machinery import installed
from tests.simulation.network import Network
from tests.simulation.node_party import TOP_K, SimulatedNode
from tests.simulation.operating import Operator
from tests.simulation.party import Place
from tests.simulation.session import Switchboard
from tests.simulation.world import World

SETTLE_MS, MEASURED_MS, CATCH_UP_MS = 15_000, 15_000, 3_000
"""Time for which members come together, for which commits are counted, and within which all nodes
have the last one of them. Two with standing that withhold their payloads hold up the first two
rounds, for 5 s each."""

OPERATED_MS, OPERATED_CATCH_UP_MS = 40_000, 10_000
"""The same of a run whose operator is busy: long enough for every kind of act."""

HONEST_MIN = 2
COMMITS_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Cast:
    """The members of one run."""

    seed: int
    honest: int = 4
    hostile: int = 0
    kind: str = "mixed"
    """One of `KINDS`, or "mixed": some of each."""
    vouched: bool = False
    """The hostile members have standing: somebody vouched for them."""
    trust: str = "public"
    audited: bool = False
    """The operator has named an auditor."""
    operated: bool = False
    """The operator gives orders meanwhile, and the coordinator is killed; the quiet run has the
    same operator."""
    commits_percent: int = COMMITS_PERCENT
    """Commits of the quiet run that must be made all the same."""


def spec_of(overlap: int, trust: str) -> RunSpec:
    """A run of short rounds, with a snapshot of every fifth."""
    return RunSpec.model_validate(
        {
            "algorithm": {"name": "local_steps" if overlap else "demo", "top_k": TOP_K},
            "schedule": {"steps": 5000, "learning_rate": 0.004, "warmup_steps": 5},
            "rounds": {
                "compute_ms": 1000,
                "publish_ms": 500,
                "exchange_ms": 1000,
                "overlap": overlap,
                "quorum": HONEST_MIN,
                "batch_samples_max": 32,
                "share_samples_first": 4,
            },
            "membership": {
                "trust": trust,
                "start_members": HONEST_MIN,
                "members_max": 32,
                "lease_ms": 3000,
                "heartbeat_ms": 500,
                "neighbours": 4,
            },
            "retention": {"snapshot_every": 5},
        }
    )


class StrictReferee(Referee):
    """Judges also what free keys and liars may not bring about. That an honest node replays the log
    because a vote was level is no harm: while others are away, one liar is half of those who vote.
    """

    honest: frozenset[PeerId] = frozenset()
    may_lapse = False
    """The coordinator dies at times, which a node may learn only after its lease."""

    def saw(self, event: Event, effects: object, *, judge_books: bool = True) -> None:
        told: list[Effect] = list(effects)  # type: ignore[call-overload]
        is_act = isinstance(event, Ordered) and isinstance(event.act, acts.Evict)
        is_outage = isinstance(event, Lapsed) and self.may_lapse
        for effect in () if is_act or is_outage else told:
            is_level = isinstance(effect, AskResync) and effect.reason.endswith(LEVEL)
            if isinstance(effect, Evict | AskResync) and not is_level:
                require(effect.peer not in self.honest, effect, "meets an honest node")
        super().saw(event, told, judge_books=judge_books)


class Strangers:
    """The parties of one run, with or without its hostile members."""

    node: type[SimulatedNode] = SimulatedNode
    sample_ms: tuple[int, ...] = (15, 30, 60)
    """Times of a sample, of which each node draws one."""
    settle_ms, measured_ms = SETTLE_MS, MEASURED_MS
    measured: Sequence[Commit] = ()
    """Commits of the measured time."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.world = World(cast.seed)
        chance = self.world.random
        self.spec = self._spec(chance.randint(0, 1))
        self.network = Network(self.world, WEATHERS[0])
        self.switchboard = Switchboard(self.network)
        self.error: Exception | None = None
        self.coordinator = SimulatedCoordinator(
            self.world, self.switchboard, self.spec, self._failed
        )
        journal = self.coordinator.journal
        self.auditor = Auditor(
            journal.commits_by_round.get,
            journal.commit_before,
            lambda round, digest: (round, digest) in self.coordinator.referee.voids,
            lambda: journal.opened_until,
            lambda round: journal.signed[round].trained,
            lambda: self.coordinator.referee.chain,
        )
        place = Place(
            self.world,
            self.network,
            self.switchboard,
            self.auditor,
            self._failed,
            1,
            PART_BYTES_MAX,
        )
        self.nodes = [self.node(place, chance.choice(self.sample_ms)) for _ in range(cast.honest)]
        salt = chance.randbytes(32)
        ring = Ring(lambda: _newest(journal.digests))
        kinds = KINDS if cast.kind == "mixed" else (cast.kind,)
        self.hostile = [
            HostileMember(self.world, self.network, self.switchboard, kind, ring)
            for _, kind in zip(range(cast.hostile), cycle(kinds), strict=False)
        ]
        trusted = [node.peer for node in self.nodes]
        trusted += [member.peer for member in self.hostile if cast.vouched]
        self.coordinator.trust = [Salted(salt), *map(Vouched, trusted)]
        if cast.audited:
            self.coordinator.trust.append(appointment(self.coordinator.rounds.run_id))
        referee = StrictReferee(self.coordinator.rounds)
        referee.may_lapse = cast.operated
        referee.honest = frozenset(node.peer for node in self.nodes)
        self.coordinator.referee = journal.referee = referee

    def _spec(self, overlap: int) -> RunSpec:
        return spec_of(overlap, self.cast.trust)

    def _failed(self, who: str, error: Exception) -> None:
        self.error = self.error or error

    def run(self) -> int:
        """Play it; returns the number of commits in the measured time."""
        with installed(self.world, PART_BYTES_MAX):
            try:
                return self._play()
            except Exception as error:
                lines = "\n".join(self.world.history(300))
                raise Violation(f"{self.cast}: {error}\n{lines}") from error
            finally:
                self.world.end()

    def _play(self) -> int:
        self.coordinator.start()
        if self.cast.audited:
            NamedAuditor(self.world, self.coordinator, self.auditor).start()
        # the strangers are there first, where they may do most harm
        for member in self.hostile:
            self.world.after(1, member.start)
        for node in self.nodes:
            self.world.after(500 + 100 * self.nodes.index(node), node.start)
        commits, operated = self.coordinator.referee.commits, self.cast.operated
        self._pass(self.settle_ms)
        before = len(commits)
        if operated:
            hostile = [member.peer for member in self.hostile]
            seed = self.cast.seed
            operator = Operator(self.world, self.coordinator, self.nodes, hostile, seed)
            operator.begin(OPERATED_MS)
        self._pass(OPERATED_MS if operated else self.measured_ms)
        self.measured = commits[before:]
        target = commits[-1].round if commits else -1
        self._pass(OPERATED_CATCH_UP_MS if operated else CATCH_UP_MS)
        self._judge(target)
        self._judge_acts()
        return len(self.measured)

    def _pass(self, milliseconds: int) -> None:
        until_ms = self.world.now_ms + milliseconds
        self.world.run_until(lambda: self.error is not None, until_ms)
        if self.error is not None:
            raise self.error

    def _judge(self, target: int) -> None:
        """Invariants 8 and 9; the auditor and the referee have judged every step of the way."""
        behind = [node.in_words() for node in self.nodes if node.head_round < target]
        require(not behind, "without the commit of round", target, behind)
        standing = self.coordinator.rounds.members.standing
        honest = {node.peer for node in self.nodes}
        public = self.cast.trust == "public"
        vouched = {member.peer for member in self.hostile} if self.cast.vouched else set()
        void = {digest for _, digest in self.coordinator.referee.voids}
        left = {e.round for e in self.coordinator.referee.chain if isinstance(e, Restart)}
        for commit in self.coordinator.referee.commits:
            authors = [entry.author for entry in commit.entries]
            # Whoever was vouched for decided then, and may have lost its standing since.
            deciding = sum(
                standing.has(author) or author in vouched or not public for author in authors
            )
            require(deciding >= self.spec.rounds.quorum, "round", commit.round, "by", authors)
            # While honest members are away, liars with standing can commit what is not there. It
            # moves no parameter: it is void once the others are back, or a restart leaves it out.
            counted = [
                entry
                for entry in commit.entries
                if entry.digest not in void and commit.round not in left
            ]
            unknown = [e.author for e in counted if e.digest not in self.auditor.payloads]
            require(not unknown, "round", commit.round, "counts payloads of", unknown)
            there = not counted or honest & {entry.author for entry in counted}
            require(there, "round", commit.round, "by hostile members alone")

    def _judge_acts(self) -> None:
        """The acts are a chain in the journal, and all of them hold after every restart."""
        orders, head = self.coordinator.referee.orders, first_digest(self.coordinator.run_id)
        for event in orders.given:
            require(not (why := flaw(event, head)), "the chain of acts breaks:", why)
            head = event.digest
        state = self.coordinator.rounds.state
        told = state.operator.acts, state.operator.head
        require(told == (len(orders.given), head), "acts", told, "of", len(orders.given))
        require(not orders.closed, "the run is still", orders.closed)


def _newest(digests: dict[int, RecordDigest]) -> tuple[int, int] | None:
    said = digests.get(max(digests, default=0))
    return (said.round, said.state_digest) if said and said.reports else None


@functools.lru_cache(maxsize=64)
def quiet_commits(seed: int, honest: int, operated: bool) -> int:
    """Commits of the same run without strangers."""
    return Strangers(Cast(seed, honest, operated=operated)).run()


def judge(cast: Cast) -> str:
    """The verdict on a run among strangers; empty if all is well."""
    try:
        played(cast)
    except Violation as violation:
        return str(violation)
    return ""


def played(cast: Cast) -> Strangers:
    """The run among strangers, at its end; `Violation` for a promise that it broke."""
    quiet = quiet_commits(cast.seed, cast.honest, cast.operated)
    among = Strangers(cast)
    made = among.run()
    require(
        100 * made >= cast.commits_percent * quiet,
        f"{cast}: {made} commits, {quiet} in the quiet run",
    )
    return among
