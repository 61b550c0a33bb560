"""Drives `RunMachine` by hand: members with short names, payloads with known digests, time that
only the test moves.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from coordinator.machine.events.acts import Pause, ordered
from coordinator.machine.events.effects import (
    AskResync,
    Chained,
    CommitRound,
    Effect,
    OpenRound,
    SkipRound,
)
from coordinator.machine.events.inputs import (
    Announced,
    Applied,
    Disconnected,
    Event,
    Holding,
    Joined,
    Lapsed,
    Left,
    NotHeld,
    Ready,
)
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.member import Member
from coordinator.machine.state.membership import FIRST_STEP_MS
from protocol.codec.chain import Void
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.runfile import RunSpec

RUN = RunId("ab" * 16)
A, B, C, D, E = PEERS = tuple(PeerId(f"{number:032x}") for number in range(1, 6))

Kind = TypeVar("Kind")


def run_spec(**sections: dict[str, Any]) -> RunSpec:
    """A run file whose rounds take 1000 + 500 + 1500 ms and whose leases outlive several of
    them.
    """
    base: dict[str, dict[str, Any]] = {
        "schedule": {"steps": 100, "warmup_steps": 0},
        "rounds": {
            "compute_ms": 1000,
            "publish_ms": 500,
            "exchange_ms": 1500,
            "stretch": 1,
            "overlap": 0,
            "quorum": 2,
            "copies_min": 1,
            "batch_samples_max": 32,
            "share_samples_first": 8,
            "payload_bytes_max": 4096,
        },
        "membership": {
            "start_members": 2,
            "lease_ms": 60_000,
            "heartbeat_ms": 1000,
            "strikes_to_mute": 2,
        },
    }
    for name, fields in sections.items():
        base.setdefault(name, {}).update(fields)
    return RunSpec.model_validate(base)


def payload_digest(peer: PeerId, round: int) -> Digest:
    """Digest of the payload that a peer makes in a round."""
    return sha256(f"{peer} in {round}".encode())


def state_digest(round: int) -> int:
    """Digest of an honest replica's parameters after a round."""
    return 1000 + round


class Driver:
    """One machine, its clock and all effects that it has returned."""

    def __init__(self, *peers: PeerId, **sections: dict[str, Any]) -> None:
        """`peers` join at once; the first round opens with all of them, unless `sections` say
        otherwise.
        """
        sections["membership"] = {"start_members": max(1, len(peers))} | sections.get(
            "membership", {}
        )
        self.machine = RunMachine(run_spec(**sections), RUN)
        self.now_ms = 1_000_000
        self.effects: list[Effect] = []
        self.join(*peers)

    # ---- what happens

    def tell(self, event: Event) -> list[Effect]:
        """Handle one event now; every invariant must hold afterwards."""
        effects = self.machine.handle(event, self.now_ms)
        self.machine.validate()
        self.effects += effects
        return effects

    def wait(self, milliseconds: int) -> list[Effect]:
        """Let time pass, with everything that becomes due on the way at its own instant."""
        end_ms, effects = self.now_ms + milliseconds, list[Effect]()
        while (due_ms := self.machine.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for event in self.machine.due(self.now_ms):
                effects += self.tell(event)
        self.now_ms = end_ms
        return effects

    def join(self, *peers: PeerId) -> list[Effect]:
        """Each says hello and is ready with the state of the log's head."""
        effects: list[Effect] = []
        for peer in peers:
            effects += self.hello(peer) + self.ready(peer)
        return effects

    def hello(self, peer: PeerId) -> list[Effect]:
        return self.tell(
            Joined(
                peer,
                (f"127.0.0.1:{int(peer, 16)}",),
                f"node {int(peer, 16)}",
                "2 cores",
                "lockstep",
            )
        )

    def ready(
        self, peer: PeerId, *, digest: int | None = None, obeyed: bool = True
    ) -> list[Effect]:
        """Ready with the head's state, made after the last request to start over if it was
        `obeyed`.
        """
        head = self.machine.state.head_round
        asked = [
            effect.number for effect in of_kind(AskResync, self.effects) if effect.peer == peer
        ]
        resyncs = asked[-1] if asked and obeyed else 0
        return self.tell(
            Ready(peer, head, state_digest(head) if digest is None else digest, resyncs)
        )

    def end_first_step(self, *peers: PeerId) -> None:
        """The time for their first step is over."""
        for peer in peers:
            self.member(peer).first_ready_ms = self.now_ms - FIRST_STEP_MS

    def mute(self, *peers: PeerId) -> None:
        """They were late in as many rounds as mute a member."""
        for peer in peers:
            self.member(peer).strikes = self.machine.spec.membership.strikes_to_mute

    def part(self, *peers: PeerId) -> list[Effect]:
        """Their sessions are lost."""
        return [effect for peer in peers for effect in self.tell(Disconnected(peer))]

    def lapse(self, *peers: PeerId) -> list[Effect]:
        """Their leases run out."""
        return [effect for peer in peers for effect in self.tell(Lapsed(peer))]

    def leave(self, *peers: PeerId) -> list[Effect]:
        return [effect for peer in peers for effect in self.tell(Left(peer, "goodbye"))]

    def announce(self, peer: PeerId, round: int, **changes: Any) -> list[Effect]:
        """An honest announcement of the whole share, except for `changes`."""
        undecided = self.machine.undecided(round)
        assignment = undecided.assignments.get(peer) if undecided else None
        fields: dict[str, Any] = {
            "digest": b"" if assignment and assignment.muted else payload_digest(peer, round),
            "payload_bytes": 100,
            "samples": sum(share.count for share in assignment.shares) if assignment else 1,
            "compute_ms": 1000,
            "loss": 2.0,
        }
        return self.tell(Announced(peer, round, **(fields | changes)))

    def hold(self, peer: PeerId, round: int, authors: Iterable[PeerId]) -> list[Effect]:
        return self.tell(
            Holding(peer, round, tuple(payload_digest(author, round) for author in authors))
        )

    def exchange(self, round: int, *peers: PeerId) -> list[Effect]:
        """Every one of `peers` announces, then holds what the others announced."""
        effects = [effect for peer in peers for effect in self.announce(peer, round)]
        for peer in peers:
            effects += self.hold(peer, round, [other for other in peers if other != peer])
        return effects

    def apply(
        self, peer: PeerId, round: int, digest: int | None = None, voids: int = 0
    ) -> list[Effect]:
        return self.tell(
            Applied(peer, round, state_digest(round) if digest is None else digest, b"", voids)
        )

    def make_round(self, *peers: PeerId) -> list[Effect]:
        """The oldest undecided round, applied by all; returns what followed."""
        round = self.machine.state.undecided[0].round
        effects = self.exchange(round, *peers)
        for peer in peers:
            effects += self.apply(peer, round)
        return effects

    def lack(self, peer: PeerId, round: int, *authors: PeerId) -> list[Effect]:
        """The member gets the payloads of these authors from nobody."""
        digests = tuple(payload_digest(author, round) for author in authors)
        return self.tell(NotHeld(peer, round, digests))

    # ---- what was said

    @property
    def commits(self) -> list[CommitRound]:
        return of_kind(CommitRound, self.effects)

    @property
    def voids(self) -> list[Void]:
        return entries_of(Void, self.effects)

    @property
    def skips(self) -> list[SkipRound]:
        return of_kind(SkipRound, self.effects)

    @property
    def opened(self) -> list[OpenRound]:
        return of_kind(OpenRound, self.effects)

    def member(self, peer: PeerId) -> Member:
        member = self.machine.members.get(peer)
        assert member is not None, f"{peer} is no member"
        return member

    def authors(self) -> list[PeerId]:
        """Contributors of the newest commit."""
        return [entry.author for entry in self.commits[-1].commit.entries]


PHASES = ("waiting", "paused", "computing", "exchanging", "finished")


def driver_in(phase: str) -> Driver:
    """A run in this phase."""
    driver = Driver(A, B, schedule={"steps": 1})
    if phase == "waiting":
        driver = Driver(A, membership={"start_members": 2})
    elif phase == "paused":
        driver = Driver(A, membership={"start_members": 2})
        head = driver.machine.state.operator.head
        driver.tell(ordered(Pause("new disk"), 1_700_000_000, head))
    elif phase == "exchanging":
        driver.announce(A, 0)
        driver.wait(1000)
    elif phase == "finished":
        driver.exchange(0, A, B)
    return driver


def of_kind(kind: type[Kind], effects: Iterable[object]) -> list[Kind]:
    """The effects of one kind, in order."""
    return [effect for effect in effects if isinstance(effect, kind)]


def entries_of(kind: type[Kind], effects: Iterable[object]) -> list[Kind]:
    """The entries of the chain of one kind that effects add, in order."""
    return of_kind(kind, (effect.entry for effect in of_kind(Chained, effects)))
