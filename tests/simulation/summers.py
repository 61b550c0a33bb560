"""A public run whose summers are partly hostile: real nodes, of which some add wrongly.

    liars      sign a wrong result, all of them the same, and give it to whoever asks
    mutes      hold parts and never add
    claimers   say that they hold every part as soon as its author has announced, and never add
    misers     give each part to one of its two summers alone

Nobody is killed here: what it costs is what they cost. A round is lost that is skipped, or that
waits for a patience until others add; each of the hostile may cost `LOST_MAX`, until it is drawn
hardly ever. Where two liars add one range their result is applied, until somebody adds again; the
replicas stay equal all the same.
"""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from coordinator.machine.events.effects import SkipRound, SummerAdded
from coordinator.machine.events.inputs import SummersLate
from node.gossip.swarm import Swarm
from node.sums.summer import Summer
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from protocol.sums.adding import Result
from protocol.sums.asked import Question
from protocol.sums.plan import SumPlan
from tests.simulation.casts import verdict_on
from tests.simulation.checkers import Violation, require
from tests.simulation.node_party import SimulatedNode
from tests.simulation.strangers import Cast, Strangers
from tests.simulation.verdicts import Verdict

KINDS = ("liars", "mutes", "claimers", "misers")

WRONG = b"\x00no sum of movements"

LIES_PERCENT = 10
"""Results of the measured time that may be wrong, at most. By then liars have signed sums unlike
those that were settled, and are drawn less; of the first rounds a fifth of the results is wrong.
"""

LOST_MAX = 4
"""Rounds that each hostile node may cost."""


class LyingSummer(Summer):
    """Signs the same wrong result as all others of its kind."""

    def _say(self, question: Question, result: Result) -> None:
        wrong = Result(WRONG + question.digest, {})
        self._shelf.spawn(self._shelf.keep_result(question.round, wrong.blob))
        super()._say(question, wrong)


class MuteSummer(Summer):
    """Never answers."""

    def asked(self, message: wire.SumsAsked) -> None:
        """Nothing."""


class MiserlySwarm(Swarm):
    """Knows one summer of each range."""

    def __init__(self, own: PeerId, *others: Any, **named: Any) -> None:
        super().__init__(own, *others, **named)
        self._itself = own

    def open(
        self, round: int, near: frozenset[PeerId] | None = None, plan: SumPlan | None = None
    ) -> None:
        """Open the round as if each range had one summer besides this node."""
        if plan:
            own = {self._itself}
            fewer = (frozenset({*sorted(each - own)[:1], *(each & own)}) for each in plan.summers)
            plan = replace(plan, summers=tuple(fewer))
        super().open(round, near, plan)


class HostileSummer(SimulatedNode):
    """One of them."""

    kind = ""

    @property
    def summer_type(self) -> type[Summer]:
        """Its way to add."""
        return {"liars": LyingSummer, "misers": Summer}.get(self.kind, MuteSummer)

    @property
    def swarm_type(self) -> type[Swarm]:
        """Its way to give."""
        return MiserlySwarm if self.kind == "misers" else Swarm


class AmongSummers(Strangers):
    """The parties of one run; `cast.hostile` of the `cast.honest` nodes are of the kind."""

    def __init__(self, cast: Cast) -> None:
        self._kinds = [cast.kind] * cast.hostile
        super().__init__(replace(cast, hostile=0))
        self.auditor.may_lie = cast.kind == "liars"
        self.hostile_nodes = [node for node in self.nodes if isinstance(node, HostileSummer)]

    def node(self, place: Any, sample_ms: int) -> SimulatedNode:  # type: ignore[override]
        """An honest node, once the hostile ones are there."""
        if not self._kinds:
            return SimulatedNode(place, sample_ms)
        hostile = HostileSummer(place, sample_ms)
        hostile.kind = self._kinds.pop()
        return hostile

    def _spec(self, overlap: int) -> RunSpec:
        plain = super()._spec(overlap)
        algorithm = plain.algorithm.model_copy(update={"name": "local_steps"})
        rounds = plain.rounds.model_copy(update={"sums": 3})
        return plain.model_copy(update={"algorithm": algorithm, "rounds": rounds})

    def judge_sums(self) -> None:
        """Nearly all rounds have sums, few are lost, and few results are wrong."""
        made, commits = len(self.measured), [each for each in self.measured if each.sums]
        require(10 * len(commits) >= 9 * made, f"{len(commits)} of {made} commits have sums")
        results = sum(len(commit.sums.results) for commit in commits if commit.sums)
        ranges = sum(commit.sums.ranges for commit in commits if commit.sums)
        require(2 * results >= ranges, f"{results} of {ranges} ranges have a result")
        rounds = {commit.round for commit in commits}
        lies = sum(round in rounds for round, _ in self.auditor.lies)
        require(100 * lies <= LIES_PERCENT * ranges, f"{lies} of {ranges} results are wrong")
        lost, hostile = self.lost_rounds(), len(self.hostile_nodes)
        require(len(lost) <= LOST_MAX * hostile, f"{hostile} cost the rounds {sorted(lost)}")

    def lost_rounds(self) -> set[int]:
        """Rounds that were skipped, or that have waited for others to add."""
        return {
            effect.round
            for row in self.coordinator.journal.rows
            for effect in row.effects
            if isinstance(effect, SkipRound)
            or (isinstance(effect, SummerAdded) and row.kind is SummersLate)
        }


def cast_of(seed: int) -> Cast:
    """Six to nine nodes, a third of them hostile."""
    chance = random.Random(f"summers of {seed}")
    hostile = chance.choice((2, 3))
    return Cast(seed, 3 * hostile, hostile, KINDS[seed % len(KINDS)])


def judge(seed: int) -> Verdict:
    """Run one seed. Its hostile nodes are counted as its faults."""
    cast = cast_of(seed)
    try:
        among = AmongSummers(cast)
        among.run()
        among.judge_sums()
    except Violation as violation:
        return Verdict(seed, f"seed {seed}: {violation}")
    return verdict_on(among, Counter({cast.kind: cast.hostile}))
