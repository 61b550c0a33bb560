"""Who acts in the world: one coordinator with its journal, and nodes that train, die and come back.

The coordinator is the real machine in a shell of a few lines: an event is journalled with its time, its effects
leave a moment later, and a crash in between loses the effects but not the event. The node is a model of one: it
catches up, announces, holds what others announced, applies commits and reports a digest; its parameters are the
hash of the commits that it applied.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.events import (
    Admit,
    Announced,
    Applied,
    AskResync,
    Assignment,
    CommitRound,
    Effect,
    Event,
    Evict,
    FinishRun,
    Held,
    Joined,
    Left,
    OpenRound,
    Parted,
    Readied,
    RecordDigest,
    Refuse,
    Renewed,
    Restarted,
    SkipRound,
    TellMembers,
)
from coordinator.rounds import Rounds
from protocol.commits import Commit, check_link, commit_digest, genesis_digest
from protocol.errors import LockstepError, RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.runfile import RunSpec
from tests.simulation.checkers import Referee, Violation, portrait, require
from tests.simulation.world import Network, World

COORDINATOR = "coordinator"
RUN = RunId("cd" * 16)


def state_after(commits: Iterable[Commit]) -> int:
    """The digest of a replica: a function of genesis and the commits applied."""
    state = genesis_digest(RUN)
    for commit in commits:
        state = sha256(state + commit_digest(commit))
    return int.from_bytes(state[:8], "big")


class SimulatedCoordinator:
    """The real machine, its journal, and what is between it and the network."""

    def __init__(self, world: World, network: Network, spec: RunSpec, machine: Callable[[], Rounds]) -> None:
        self.world, self.network, self.spec = world, network, spec
        self.nodes: dict[PeerId, SimulatedNode] = {}
        self.journal: list[tuple[int, Event]] = []
        self.machine = machine()
        self.referee = Referee(self.machine)
        self.running = True
        self.told_decided = -1
        self._make = machine
        self._life = 0
        self._sessions: dict[PeerId, int] = {}
        self._wake()

    # ---- events in

    def receive(self, sender: "SimulatedNode", session: int, event: Event) -> None:
        """An event from the network, if anybody is there to take it. Honest nodes are never refused.

        As in the server, a hello opens a session and ends the node's earlier one, whose events are dropped."""
        if not self.running:
            return
        known = self._sessions.get(sender.peer, -1)
        if isinstance(event, Joined) and session > known:
            self._sessions[sender.peer] = session
        elif session != known:
            self.network.carry(COORDINATOR, sender.peer, lambda: sender.closed(session))
            return
        if isinstance(event, Left | Parted):
            del self._sessions[sender.peer]
        try:
            self._handle(event)
        except RemoteProtocolError as error:
            raise Violation(f"an honest node was refused: {error} after {event}") from error

    def commits_after(self, round: int) -> tuple[list[Commit], int]:
        """Reply to a node that catches up: commits and the newest decided round, as far as they were told."""
        commits = [commit for commit in self.referee.commits if round < commit.round <= self.told_decided]
        return commits, self.told_decided

    def _handle(self, event: Event) -> None:
        effects = self.machine.handle(event, self.world.now_ms)
        self.world.say(f"event {event}")
        for effect in effects:
            self.world.say(f"    -> {effect}")
            if isinstance(effect, Evict | Refuse):
                self._sessions.pop(effect.peer, None)
        self.referee.saw(event, effects)
        if not isinstance(event, Renewed):
            self.journal.append((self.world.now_ms, event))
        decided, life = self.machine.decided_round, self._life
        self.world.after(self.world.random.randint(0, 3), lambda: self._emit(effects, decided, life))
        self._wake()

    def _wake(self) -> None:
        due_ms, life = self.machine.next_due_ms(), self._life
        if due_ms is not None:
            self.world.after(max(0, due_ms - self.world.now_ms), lambda: self._due(life))

    def _due(self, life: int) -> None:
        if self.running and life == self._life:
            for event in self.machine.due(self.world.now_ms):
                self._handle(event)

    # ---- effects out

    def _emit(self, effects: list[Effect], decided: int, life: int) -> None:
        if not self.running or life != self._life:
            return  # crashed after the journal was written: nobody was told
        self.told_decided = max(self.told_decided, decided)
        for effect in effects:
            for peer, told in self._addressed(effect):
                node = self.nodes[peer]
                self.network.carry(COORDINATOR, peer, lambda node=node, told=told: node.receive(told))

    def _addressed(self, effect: Effect) -> list[tuple[PeerId, Effect]]:
        match effect:
            case Admit(peer) | Refuse(peer) | Evict(peer) | AskResync(peer):
                return [(peer, effect)]
            case OpenRound(assignments=assignments):
                return [(assignment.peer, effect) for assignment in assignments]
            case CommitRound() | SkipRound() | FinishRun():
                return [(peer, effect) for peer in sorted(self.nodes)]
            case TellMembers() | RecordDigest():
                return []

    # ---- faults

    def crash(self) -> None:
        """Killed: memory is gone, the journal stays."""
        self.world.say("coordinator is killed")
        self.running, self._life = False, self._life + 1
        self._sessions.clear()

    def start(self) -> None:
        """A new process on the same journal; its state must be the one that was lost."""
        if self.running:
            return
        self.world.say("coordinator starts")
        lost = portrait(self.machine, with_leases=False)
        self.machine = self._make()
        for at_ms, event in self.journal:
            try:
                self.machine.handle(event, at_ms)
            except LockstepError as error:
                raise Violation(f"the journal does not rebuild the state: {error}") from error
        require(portrait(self.machine, with_leases=False) == lost, "the journal does not rebuild the state")
        self.referee.machine = self.machine
        self.running, self.told_decided = True, self.machine.decided_round
        if self.journal:
            self._handle(Restarted())


@dataclass(slots=True)
class Disk:
    """What a node keeps over its death: the commits that it applied and the payloads that it holds."""

    applied: list[Commit] = field(default_factory=list)
    settled_round: int = -1
    payloads: set[Digest] = field(default_factory=set)
    momentum: bool = False


class SimulatedNode:
    """An honest node, seen from outside. `speed` is in milliseconds per sample."""

    def __init__(self, peer: PeerId, speed: int, coordinator: SimulatedCoordinator) -> None:
        self.peer, self.speed = peer, speed
        self.world, self.network, self.coordinator = coordinator.world, coordinator.network, coordinator
        self.disk = Disk()
        self.alive = False
        self.session = False
        self.finished = False
        self._life = 0
        self._lives = 0
        self._hellos = 0
        self._heard_ms = 0
        self._ready = False
        self._trained_round = -1
        self._words: dict[int, Commit | None] = {}
        self._said: dict[int, Announced] = {}
        coordinator.nodes[peer] = self

    # ---- life and death

    def live(self) -> None:
        """Start, or come back after a death."""
        if not self.alive:
            self.alive, self._lives = True, self._lives + 1
            self._life += 1
            self.world.say(f"node {self.peer[-2:]} lives")
            self._beat(self._life)

    def die(self, *, disk_too: bool) -> None:
        """Killed; its disk may be lost as well."""
        if self.alive:
            self.world.say(f"node {self.peer[-2:]} dies{' with its disk' if disk_too else ''}")
        if self.session and self.world.random.random() < 0.7:  # else its machine went silently
            self._send(Parted(self.peer))
        self.alive, self.session, self._ready, self._life = False, False, False, self._life + 1
        self._trained_round = -1
        self._words.clear()
        self._said.clear()
        if disk_too:
            self.disk = Disk()

    @property
    def at_head(self) -> bool:
        """Has applied every commit there is."""
        return self.alive and self.disk.applied == self.coordinator.referee.commits

    def _send(self, event: Event) -> None:
        if self.alive:
            session = self._hellos
            self.network.carry(self.peer, COORDINATOR, lambda: self.coordinator.receive(self, session, event))

    def closed(self, session: int) -> None:
        """The coordinator has no such session any more."""
        if session == self._hellos:
            self.session = False

    def _beat(self, life: int) -> None:
        """Heartbeats; a coordinator that has been silent for four of them is said hello to again."""
        if life != self._life or self.finished:
            return
        heartbeat_ms = self.coordinator.spec.membership.heartbeat_ms
        if not self.session or self.world.now_ms - self._heard_ms > 4 * heartbeat_ms:
            self.session, self._hellos = False, self._hellos + 1
            self._send(Joined(self.peer, (f"host-{self.peer[-2:]}:1",), "", "", ""))
        else:
            self._send(Renewed(self.peer))
            self._ask_commits()
        self.world.after(heartbeat_ms, lambda: self._beat(life))

    # ---- from the coordinator

    def receive(self, effect: Effect) -> None:
        """A message of the session. Nothing that the network does to messages may be taken amiss."""
        if not self.alive:
            return
        self._heard_ms = self.world.now_ms
        match effect:
            case Admit():
                self.session, self._ready = True, False
                for announced in self._said.values():
                    self._send(announced)
                    self._report(announced.round)
                self._ask_commits()
            case Evict() | Refuse():
                self.session = False
            case AskResync(_, _, reason):
                raise Violation(f"an honest node was told to resync: {reason}")
            case OpenRound():
                mine = next(asked for asked in effect.assignments if asked.peer == self.peer)
                self._train(effect, mine)
            case CommitRound(commit):
                self._words[commit.round] = commit
                self._settle()
            case SkipRound(round):
                self._words[round] = None
                self._settle()
            case FinishRun():
                self.finished = self.at_head or self.finished

    # ---- catching up

    def _ask_commits(self) -> None:
        """Ask what was decided after this node's state: at the start, and with every heartbeat in case a word was
        lost."""
        life, after = self._life, self.disk.settled_round

        def answer() -> None:
            if self.coordinator.running:
                commits, decided = self.coordinator.commits_after(after)
                self.network.carry(COORDINATOR, self.peer, lambda: self._told(commits, decided, life))

        self.network.carry(self.peer, COORDINATOR, answer)

    def _told(self, commits: list[Commit], decided: int, life: int) -> None:
        if life != self._life:
            return
        self._heard_ms = self.world.now_ms
        told = {commit.round: commit for commit in commits}
        for round in range(self.disk.settled_round + 1, decided + 1):
            self._words.setdefault(round, told.get(round))
        self._settle()
        if self.session and not self._ready and self.disk.settled_round >= decided:
            self._ready = True
            state = state_after(self.disk.applied)
            head = self.disk.applied[-1].round if self.disk.applied else -1
            self._send(Readied(self.peer, head, state, self.disk.momentum))
        elif self.session and self._ready and self.world.random.random() < 0.3:
            self._ready = False  # a lost `Readied` would leave it waiting: a real session is a reliable stream

    def _settle(self) -> None:
        """Apply what is decided, strictly in order, as far as its payloads are within reach."""
        while (round := self.disk.settled_round + 1) in self._words:
            commit = self._words[round]
            if commit is not None:
                if not all(self._fetch(entry.digest) for entry in commit.entries):
                    return  # asked again with the next heartbeat
                self._apply(commit)
            self.disk.settled_round = round
            del self._words[round]
            self._said.pop(round, None)

    def _apply(self, commit: Commit) -> None:
        last = self.disk.applied[-1] if self.disk.applied else None
        check_link(commit, RUN, commit_digest(last) if last else genesis_digest(RUN), last.round if last else -1)
        self.disk.applied.append(commit)
        self._send(Applied(self.peer, commit.round, state_after(self.disk.applied), b""))

    def _fetch(self, digest: Digest) -> bool:
        """Pull a payload from any living node that holds it."""
        if digest not in self.disk.payloads:
            others = [node for node in self.coordinator.nodes.values() if node.alive and node is not self]
            if not any(digest in node.disk.payloads for node in others):
                return False
            self.disk.payloads.add(digest)
        return True

    # ---- a round

    def _train(self, opened: OpenRound, mine: Assignment) -> None:
        if opened.round <= max(self._trained_round, self.disk.settled_round):
            return  # told again after a reconnect, or decided meanwhile
        self._trained_round = opened.round
        leased = sum(share.count for share in mine.shares)
        left_ms = max(0, opened.instants.bell - self.world.now_ms)
        samples = max(1, min(leased, left_ms // self.speed))
        took_ms, life = samples * self.speed, self._life
        self.world.after(took_ms, lambda: self._announce(opened.round, mine.muted, samples, took_ms, life))

    def _announce(self, round: int, muted: bool, samples: int, took_ms: int, life: int) -> None:
        if life != self._life:
            return
        self.disk.momentum = True
        name = f"{self.peer} {round} {self._lives}"  # after a death the same round has another payload
        digest = b"" if muted else hashlib.sha256(name.encode()).digest()
        announced = Announced(self.peer, round, digest, 100 if digest else 0, samples, took_ms, 2.0)
        if digest:
            self.disk.payloads.add(Digest(digest))
        if round > self.disk.settled_round:
            self._said[round] = announced
        self._send(announced)
        if digest:
            for node in sorted(self.coordinator.nodes.values(), key=lambda other: other.peer):
                if node is not self:
                    self.network.carry(self.peer, node.peer, lambda node=node: node.take(round, Digest(digest)))

    def take(self, round: int, digest: Digest) -> None:
        """A payload of another node arrives and is verified; a node that is not in the round has no use for it."""
        if self.alive and self._ready and round > self.disk.settled_round:
            self.disk.payloads.add(digest)
            self._send(Held(self.peer, round, (digest,)))

    def _report(self, round: int) -> None:
        known = {Digest(announced.digest) for node in self.coordinator.nodes.values()
                 if node is not self and (announced := node._said.get(round)) and announced.digest}  # fmt: skip
        if held := sorted(known & self.disk.payloads):
            self._send(Held(self.peer, round, tuple(held)))

    def leave(self) -> None:
        """Say goodbye and stop."""
        self._send(Left(self.peer, "goodbye"))
        self.die(disk_too=False)
