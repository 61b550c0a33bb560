"""Costs of a coordinator as a run grows: `python -m tests.benchmarks.scale [--json PATH]`.

The real machine, message codec, signatures and journal in virtual time. Members are modelled: each
has one of six home links and a machine of some speed, which decide when it announces, holds and
applies. Everything between the bytes of a node's message and the bytes that leave is done and
timed; only gRPC and the network are missing.

    node messages (bytes) -> events -> machine -> journal (SQLite) -> messages (bytes)
         '------ parse ------'------- machine ----'---- journal ---'--- encode ---'

A message for several members is encoded once. `--receipts all` has every member report every
payload, as a run without witnesses would. `--sums` measures each size a second time with summers:
members report the parts that they hold, and sign what they find.
"""

import argparse
import heapq
import json
import platform
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import Journal
from coordinator.machine.events.effects import (
    Admit,
    CommitRound,
    Effect,
    OpenRound,
    RecordDigest,
    SkipRound,
    SummerAdded,
    SumsAsked,
    TellMembers,
)
from coordinator.machine.events.inputs import Event, Heartbeat, Joined
from coordinator.machine.machine import RunMachine
from coordinator.service import coordinator_messages, member_list, node_messages
from coordinator.state_snapshot import encode_state
from node.round.witness import SMALL_RUN_FACTOR, TOGETHER_S, WITNESSES
from protocol import wire_pb2 as wire
from protocol.codec.commits import sign_commit
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, peer_id, sha256
from protocol.runfile import RunSpec
from protocol.sums.asked import sign_sum
from protocol.sums.receipts import receipt_name

RUN = RunId("0" * 32)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))

LINKS = ((16, 40), (220, 25), (300, 10), (30, 70), (150, 55), (118, 45))
"""(Mbit/s down, round trip in ms): dsl, cable, fibre, lte, 5g-fixed, starlink."""

PAYLOAD_BYTES = 30_000
"""Bytes of a payload: a model of some ten million parameters."""

RESULT_BYTES = 50_000
"""Bytes of all results of a round together: 1.7 payloads (docs/results/sums.md)."""

MODEL = {"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 6}
"""Fields of that model's configuration."""

SUMMING_MS = 300
"""Time in which a member adds the ranges that it was asked for."""

BATCH_MS = 5
"""Time of a synchronous write of the journal, in which the core collects new messages."""

WARM_ROUNDS = 2
"""Rounds before the measured ones: members join, speeds are unknown."""


@dataclass(frozen=True, slots=True)
class Link:
    """One member's side of the network and its machine."""

    peer: PeerId
    down_bytes_per_ms: float
    one_way_ms: int
    effort: float
    """Part of the time to the bell that its share takes."""
    key: Ed25519PrivateKey


class Members:
    """All nodes of a run, as their messages: content and time, given what each was told."""

    def __init__(self, count: int, seed: int, *, witnesses: bool, copies_min: int) -> None:
        self.random = random.Random(seed)
        self.links = {}
        for number in range(count):
            down, round_trip_ms = self.random.choice(LINKS)
            key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
            peer, effort = peer_id(public_bytes(key)), self.random.uniform(0.6, 1.0)
            self.links[peer] = Link(peer, down * 125.0, round_trip_ms // 2, effort, key)
        wanted = WITNESSES + 4 * copies_min
        self.reporters = wanted if witnesses and count > SMALL_RUN_FACTOR * wanted else count
        self.announced: dict[int, dict[Digest, int]] = {}
        self.names: dict[Digest, int] = {}
        """Names in receipts."""

    def announces(
        self, opened: OpenRound, now_ms: int
    ) -> Iterator[tuple[int, PeerId, wire.NodeMessage]]:
        """All members' announcements, at the times they reach the coordinator."""
        for assignment in opened.assignments:
            link = self.links[assignment.peer]
            compute_ms = int(link.effort * (opened.instants.bell - opened.instants.opened))
            at_ms = now_ms + 2 * link.one_way_ms + compute_ms + self.random.randint(50, 400)
            digest = b"" if assignment.muted else sha256(f"{link.peer} {opened.round}".encode())
            announced = wire.Announced(
                round=opened.round,
                digest=digest,
                payload_bytes=PAYLOAD_BYTES if digest else 0,
                samples=sum(share.count for share in assignment.shares),
                compute_ms=compute_ms,
                loss=2.5,
            )
            if digest:
                self.announced.setdefault(opened.round, {})[Digest(digest)] = at_ms
                self.names[Digest(digest)] = receipt_name(link.peer, Digest(digest))
            yield at_ms, link.peer, wire.NodeMessage(announced=announced)

    def receipts(self, round: int) -> Iterator[tuple[int, PeerId, wire.NodeMessage]]:
        """Each member's receipts, batched as `node.round.witness` does: its link takes one payload
        after another.
        """
        born = self.announced[round]
        peers = list(self.links)
        share = self.reporters / len(peers)
        for link in self.links.values():
            order = sorted(born, key=lambda digest: (born[digest], self.random.random()))
            free_ms, together = 0.0, dict[int, list[Digest]]()
            for digest in order:
                free_ms = (
                    max(free_ms, born[digest] + 3 * link.one_way_ms)
                    + PAYLOAD_BYTES / link.down_bytes_per_ms
                )
                if share == 1 or self.random.random() < share:
                    slot = int((free_ms + link.one_way_ms) / (1000 * TOGETHER_S))
                    together.setdefault(slot, []).append(digest)
            for slot, digests in together.items():
                at_ms = int((slot + 1) * 1000 * TOGETHER_S)
                yield (
                    at_ms,
                    link.peer,
                    wire.NodeMessage(holding=wire.Holding(round=round, digests=digests)),
                )

    def parts(
        self, round: int, peer: PeerId, numbers: list[int], ranges: int, now_ms: int = 0
    ) -> Iterator[tuple[int, PeerId, wire.NodeMessage]]:
        """A summer's receipts for the parts of its ranges, batched as those of payloads: its link
        takes those of one author after another.
        """
        born, link = self.announced[round], self.links[peer]
        mask = sum(1 << number for number in numbers)
        free_ms, together = float(now_ms), dict[int, list[int]]()
        part_bytes = PAYLOAD_BYTES * len(numbers) / ranges
        for root in sorted(born, key=lambda root: (born[root], self.random.random())):
            free_ms = max(free_ms, born[root] + 3 * link.one_way_ms)
            free_ms += part_bytes / link.down_bytes_per_ms
            slot = int((free_ms + link.one_way_ms) / (1000 * TOGETHER_S))
            together.setdefault(slot, []).append(self.names[root])
        for slot, payloads in together.items():
            at_ms = int((slot + 1) * 1000 * TOGETHER_S)
            held = wire.HeldParts(ranges=mask, payloads=sorted(payloads))
            yield at_ms, peer, wire.NodeMessage(parts=wire.PartsHeld(round=round, held=[held]))

    def sums(self, asked: SumsAsked, now_ms: int) -> Iterator[tuple[int, PeerId, wire.NodeMessage]]:
        """What a summer finds."""
        link = self.links[asked.peer]
        for question in asked.questions:
            digest = sha256(b"%d of %d" % (question.number, question.round))
            summed = wire.Summed(
                round=question.round,
                range=question.number,
                digest=digest,
                result_bytes=RESULT_BYTES // question.ranges,
                public_key=public_bytes(link.key),
                signature=sign_sum(question, digest, link.key),
            )
            at_ms = now_ms + 2 * link.one_way_ms + self.random.randint(50, SUMMING_MS)
            yield at_ms, asked.peer, wire.NodeMessage(summed=summed)

    def applies(self, round: int, now_ms: int) -> Iterator[tuple[int, PeerId, wire.NodeMessage]]:
        """All members apply a commit soon after they hear of it."""
        for link in self.links.values():
            at_ms = now_ms + 2 * link.one_way_ms + self.random.randint(50, 500)
            yield (
                at_ms,
                link.peer,
                wire.NodeMessage(applied=wire.Applied(round=round, state_digest=1000 + round)),
            )


class Desk:
    """A coordinator without sockets: messages are handled in batches, journalled, and answered in
    bytes.
    """

    def __init__(self, spec: RunSpec, members: Members, directory: Path) -> None:
        self.members, self.rounds = members, RunMachine(spec, RUN)
        self.journal = Journal(directory / "journal.sqlite")
        self.now_ms = 1_000_000
        self.cpu_ms: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.slot_ms = 0
        self._queue: list[tuple[int, int, PeerId, bytes]] = []
        self._sequence = 0

    def plan(self, saying: Iterator[tuple[int, PeerId, wire.NodeMessage]]) -> None:
        """Schedule the members' messages at the times of their arrival."""
        for at_ms, peer, message in saying:
            self._sequence += 1
            blob = message.SerializeToString()
            heapq.heappush(self._queue, (max(at_ms, self.now_ms + 1), self._sequence, peer, blob))

    def join(self) -> None:
        """All members join, a few in each millisecond, and are ready."""
        ready = wire.NodeMessage(ready=wire.Ready(round=-1, state_digest=999))
        heartbeat_ms = self.rounds.spec.membership.heartbeat_ms
        for place, peer in enumerate(self.members.links):
            event = Joined(
                peer, (f"203.0.113.{place % 250}:50701",), "a node", "8 cores", "lockstep 0.1.0"
            )
            self._handle_batch([event])
            self.plan(iter([(self.now_ms + 100, peer, ready)]))
            self.plan(iter([(self.now_ms + place % heartbeat_ms, peer, _heartbeat(self.now_ms))]))
            self.now_ms += 1

    def run(self, rounds: int) -> None:
        """Run until `rounds` rounds are decided."""
        until = self.rounds.state.decided_round + rounds
        while self.rounds.state.decided_round < until:
            due_ms = self.rounds.next_due_ms()
            next_ms = min(self._queue[0][0] if self._queue else 2**62, due_ms or 2**62)
            self.now_ms = max(self.now_ms, next_ms) + BATCH_MS
            arrived = []
            while self._queue and self._queue[0][0] <= self.now_ms:
                arrived.append(heapq.heappop(self._queue)[2:])
            with self._timed("parse"):
                events = [
                    self._event(peer, wire.NodeMessage.FromString(blob)) for peer, blob in arrived
                ]
            self._count_arrivals(arrived, events)
            self._handle_batch(events)

    def _event(self, peer: PeerId, message: wire.NodeMessage) -> Event:
        if message.WhichOneof("kind") == "summed":
            return node_messages.summed(peer, message.summed, self.rounds)
        return node_messages.event_of(peer, message)

    def _count_arrivals(self, arrived: list[tuple[PeerId, bytes]], events: list[Event]) -> None:
        for (peer, blob), event in zip(arrived, events, strict=True):
            self.messages[f"in {type(event).__name__}"] += 1
            self.bytes["in"] += len(blob)
            if isinstance(event, Heartbeat):
                reply = coordinator_messages.heartbeat_reply(
                    self.now_ms, self.now_ms, self.now_ms
                ).SerializeToString()
                self._sent("HeartbeatReply", reply, 1)
                self.plan(
                    iter(
                        [
                            (
                                self.now_ms + self.rounds.spec.membership.heartbeat_ms,
                                peer,
                                _heartbeat(0),
                            )
                        ]
                    )
                )

    def _handle_batch(self, events: list[Event]) -> None:
        effects, durable = list[Effect](), list[tuple[int, Event]]()
        with self._timed("machine"):
            for event in events:
                effects += self.rounds.handle(event, self.now_ms)
            durable += [
                (self.now_ms, event) for event in events if not isinstance(event, Heartbeat)
            ]
            while due := self.rounds.due(self.now_ms):
                for event in due:
                    effects += self.rounds.handle(event, self.now_ms)
                    durable.append((self.now_ms, event))
        commits = [effect for effect in effects if isinstance(effect, CommitRound)]
        digests = [effect for effect in effects if isinstance(effect, RecordDigest)]
        with self._timed("sign"):
            signed = {effect.commit.round: sign_commit(effect.commit, KEY) for effect in commits}
        with self._timed("journal"):
            rows = [
                (effect.commit.round, signed[effect.commit.round], effect.loss)
                for effect in commits
            ]
            if durable or rows or digests:
                self.journal.append(durable, rows, digests)
        self._perform(effects, signed)

    def _perform(self, effects: list[Effect], signed: dict[int, Any]) -> None:
        members = len(self.rounds.members)
        if changes := [effect for effect in effects if isinstance(effect, TellMembers)]:
            self._tell(
                member_list.changes_message(self.rounds.members, changes), "Members", members
            )
        for effect in effects:
            match effect:
                case Admit():
                    welcome = wire.Welcome(members=member_list.members_message(self.rounds.members))
                    self._tell(wire.CoordinatorMessage(welcome=welcome), "Welcome", 1)
                case OpenRound():
                    self.slot_ms = effect.instants.commit_by - effect.instants.opened
                    for assignment in effect.assignments:
                        self._tell(
                            coordinator_messages.opened_message(effect, assignment),
                            "RoundOpened",
                            1,
                        )
                    self.plan(self.members.announces(effect, self.now_ms))
                    self._plan_receipts(effect)
                case SummerAdded(round, number, peer):
                    self._tell(coordinator_messages.summer_added(effect), "SummerAdded", members)
                    asked = self.rounds.undecided(round)
                    if asked and asked.sums:
                        ranges = asked.sums.ranges
                        self.plan(self.members.parts(round, peer, [number], ranges, self.now_ms))
                case SumsAsked(peer, questions):
                    self._tell(coordinator_messages.sums_asked(questions), "SumsAsked", 1)
                    self.plan(self.members.sums(effect, self.now_ms))
                case CommitRound(commit, holders, _):
                    word = coordinator_messages.committed_message(
                        signed[commit.round], holders, to_author=commit.sums is not None
                    )
                    self._tell(word, "RoundCommitted", members)
                    self.plan(self.members.applies(commit.round, self.now_ms))
                case SkipRound(round, reason):
                    skipped = wire.CoordinatorMessage(
                        skipped=wire.RoundSkipped(round=round, reason=reason)
                    )
                    self._tell(skipped, "RoundSkipped", members)
                case _:
                    pass

    def _plan_receipts(self, opened: OpenRound) -> None:
        if not opened.plan:
            self.plan(self.members.receipts(opened.round))
        ranges = len(opened.plan)
        for peer in sorted({peer for row in opened.plan for peer in row}):
            numbers = [number for number, row in enumerate(opened.plan) if peer in row]
            self.plan(self.members.parts(opened.round, peer, numbers, ranges))

    def _tell(self, message: wire.CoordinatorMessage, name: str, receivers: int) -> None:
        with self._timed("encode"):
            blob = message.SerializeToString()
        self._sent(name, blob, receivers)

    def _sent(self, name: str, blob: bytes, receivers: int) -> None:
        self.messages[f"out {name}"] += receivers
        self.bytes["out"] += len(blob) * receivers

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.process_time()
        try:
            yield
        finally:
            self.cpu_ms[part] += 1000 * (time.process_time() - started)


def _heartbeat(sent_ms: int) -> wire.NodeMessage:
    return wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=sent_ms))


def measure(
    count: int, rounds: int, seed: int, *, witnesses: bool, sums: bool = False
) -> dict[str, Any]:
    """One run of `count` members, with summers or without: the cost of joining, and of each of
    `rounds` rounds.
    """
    config = RunSpec().model.config | MODEL
    spec = RunSpec.model_validate(
        {
            "algorithm": {"name": "local_steps"},
            "model": {"config": config},
            "schedule": {"steps": 100_000},
            "rounds": {
                "quorum": max(2, count // 2),
                "batch_samples_max": 64 * count,
                "sums": int(sums),
            },
            "membership": {"start_members": count, "members_max": 4096},
        }
    )
    members = Members(count, seed, witnesses=witnesses, copies_min=spec.rounds.copies_min)
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(spec, members, Path(directory))
        desk.join()
        joining = {"cpu_ms": sum(desk.cpu_ms.values()), "bytes_out": desk.bytes["out"]}
        desk.run(WARM_ROUNDS)
        for counter in (desk.cpu_ms, desk.messages, desk.bytes):
            counter.clear()
        started_ms, committed = desk.now_ms, desk.rounds.state.totals.committed
        desk.run(rounds)
        document = {
            "members": count,
            "sums": sums,
            "rounds": rounds,
            "committed": desk.rounds.state.totals.committed - committed,
            "seconds_per_round": (desk.now_ms - started_ms) / 1000 / rounds,
            "cpu_ms_per_round": {part: value / rounds for part, value in desk.cpu_ms.items()}
            | {"all": sum(desk.cpu_ms.values()) / rounds},
            "messages_per_round": {
                name: value / rounds for name, value in sorted(desk.messages.items())
            },
            "bytes_per_round": {way: value / rounds for way, value in desk.bytes.items()},
            "state_bytes": len(encode_state(desk.rounds.state)),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "joining": joining,
        }
        desk.journal.close()
    return document


def main() -> None:
    """Measure each size, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", default="10,100,1000", help="sizes, ascending")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--receipts", choices=["witnesses", "all"], default="witnesses")
    parser.add_argument("--sums", action="store_true", help="each size with summers, too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.members.split(",")]
    print(
        f"{'members':>8} {'sums':>5} {'CPU ms':>9} {'messages in':>12} "
        f"{'MB in':>8} {'MB out':>9} {'state MB':>9} {'round s':>8}"
    )
    rows = []
    witnesses = arguments.receipts == "witnesses"
    cases = [(size, sums) for size in sizes for sums in (False, True)[: 1 + arguments.sums]]
    for size, sums in cases:
        row = measure(size, arguments.rounds, arguments.seed, witnesses=witnesses, sums=sums)
        rows.append(row)
        arrived = sum(
            value for name, value in row["messages_per_round"].items() if name.startswith("in ")
        )
        megabytes = [row["bytes_per_round"][way] / 1e6 for way in ("in", "out")]
        print(
            f"{size:>8} {'yes' if sums else 'no':>5} {row['cpu_ms_per_round']['all']:>9.1f} "
            f"{arrived:>12.0f} "
            f"{megabytes[0]:>8.2f} {megabytes[1]:>9.2f} {row['state_bytes'] / 1e6:>9.2f} "
            f"{row['seconds_per_round']:>8.1f}",
            flush=True,
        )
    if arguments.json:
        machine = {
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        }
        document = {
            **machine,
            "receipts": arguments.receipts,
            "seed": arguments.seed,
            "sizes": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
