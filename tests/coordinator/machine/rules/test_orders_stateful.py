"""The operator's orders and tokens between any other events, with jumps of time and restarts: every
invariant holds, and a replay of the journal comes to the same state.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from coordinator.machine.events import acts
from coordinator.machine.events.acts import TokenShown
from coordinator.machine.rules import orders
from protocol.ids import Digest, PeerId, sha256
from tests.coordinator.machine.driver import PEERS
from tests.coordinator.machine.rules.test_demotion import AUDITOR, demote, reject
from tests.coordinator.machine.test_rounds_stateful import AnyOrder, peers

WALL_S = 1_700_000_000
SECRETS = [sha256(b"one"), sha256(b"two"), sha256(b"three")]

reversible = st.one_of(
    st.builds(acts.Pause),
    st.builds(acts.Resume),
    st.builds(acts.Evict, peers, away_s=st.sampled_from([0, 1, 60])),
    st.builds(acts.Ban, st.one_of(peers, st.just("192.0.2.7"))),
    st.builds(acts.Unban, st.one_of(peers, st.just("192.0.2.7"))),
    st.builds(acts.Vouch, peers),
    st.builds(acts.Appoint, peers),
    st.just(acts.Appoint(AUDITOR)),
    st.builds(demote, peers, st.integers(0, 3)),
    st.builds(reject, peers, st.integers(0, 3)),
    st.builds(acts.Dismiss, peers),
    st.builds(acts.Announce, st.just("text")),
    st.builds(acts.Admit, st.sampled_from(["open", "token", "list"])),
    st.builds(acts.Allow, peers),
    st.builds(acts.Disallow, peers),
    st.builds(
        acts.Token,
        st.sampled_from(["a", "b"]),
        st.sampled_from(SECRETS),
        st.integers(1, 3),
        st.sampled_from([0, WALL_S + 1]),
        st.booleans(),
    ),
    st.builds(acts.Revoke, st.sampled_from(["a", "b"])),
)


class UnderAnOperator(AnyOrder):
    """Any order of events, the operator's among them."""

    @rule(act=reversible)
    def operator_orders(self, act: acts.Act) -> None:
        state = self.machine.state
        if not orders.objection(act, self.machine):
            self.tell(acts.ordered(act, WALL_S, state.operator.head))
            self.refused_stay_away()

    @rule()
    def operator_lets_go(self) -> None:
        """So that a run is not paused and closed for the rest of its life."""
        allowed = (*map(acts.Unban, PEERS), *map(acts.Vouch, PEERS))
        for act in (acts.Resume(), acts.Admit("open"), *allowed):
            self.operator_orders(act)

    @rule(steps=st.integers(0, 8))
    def operator_ends_the_run(self, steps: int) -> None:
        if self.machine.state.totals.committed >= steps > 5:
            self.operator_orders(acts.Finish("enough"))

    @rule(peer=peers, digest=st.sampled_from(SECRETS), late_s=st.integers(0, 2))
    def shows_a_token(self, peer: PeerId, digest: Digest, late_s: int) -> None:
        self.tell(TokenShown(peer, digest, WALL_S + late_s))
        self.says_hello(peer)
        self.refused_stay_away()

    def refused_stay_away(self) -> None:
        """No banned key is a member, no token admits more keys than it may."""
        operator = self.machine.state.operator
        assert not operator.bans.keys() & self.machine.members.roster.keys()
        assert operator.rejected.keys() <= self.machine.state.verdicts.auditors
        for used in operator.admission.tokens.values():
            assert used.uses <= used.token.uses


TestUnderAnOperator = UnderAnOperator.TestCase
TestUnderAnOperator.settings = settings(
    max_examples=30,
    stateful_step_count=60,
)
