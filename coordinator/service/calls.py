"""The unary calls of the coordinator: the run, its log, its status, its members.

They ask for nothing and are open to everyone, so each costs little: a reply is made once for all
that ask the same within a second, and a host may make a bounded number of calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
import msgspec
from cachetools import LRUCache

from border.visitors import Visitors
from coordinator.checkpoints.desk import CheckpointDesk
from coordinator.journal import Journal
from coordinator.sequencer import Sequencer
from coordinator.service import coordinator_messages, member_list
from coordinator.service.door import Door
from coordinator.service.relays import Relays
from coordinator.traffic import CoordinatorTraffic
from protocol import wire_pb2 as wire
from protocol.border.networks import host_of
from protocol.limits import COMMITS_PER_REPLY, PROTOCOL_VERSION
from protocol.runfile import run_json
from protocol.wire_pb2_grpc import CoordinatorServicer

KEPT_S = 1.0
"""Time for which the reply to a call is kept and given to all that ask the same."""

PAGES_KEPT = 64
"""Pages of the log that are kept."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_Reply = TypeVar("_Reply")


class Replies(Generic[_Reply]):
    """Replies to calls, each made once for all that ask within `KEPT_S`."""

    def __init__(self, kept: int = 1) -> None:
        self._made: LRUCache[Hashable, tuple[float, asyncio.Task[_Reply]]] = LRUCache(kept)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[_Reply]]) -> _Reply:
        """The reply under this key; `make` makes it when there is none."""
        now_s = asyncio.get_running_loop().time()
        made_s, task = self._made.get(key, (0.0, None))
        if task is None or now_s - made_s >= KEPT_S:
            task = asyncio.ensure_future(_run(make))
            self._made[key] = now_s, task
        return await asyncio.shield(task)  # a caller that hangs up leaves it to the others


async def _run(make: Callable[[], Awaitable[_Reply]]) -> _Reply:
    return await make()


class Calls(CoordinatorServicer):
    """The unary half of the service. `status()` makes the document of /status.json."""

    def __init__(
        self,
        sequencer: Sequencer,
        journal: Journal,
        coordinator_key: bytes,
        status: Callable[[], dict[str, Any]],
        *,
        relays: Relays,
        door: Door,
        checkpoints: CheckpointDesk,
        visitors: Visitors,
    ) -> None:
        self._sequencer, self._journal = sequencer, journal
        self._key, self._status = coordinator_key, status
        self.relays, self._door, self.checkpoints = relays, door, checkpoints
        self._visitors = visitors
        self._status_replies: Replies[wire.Status] = Replies()
        self._member_replies: Replies[wire.Members] = Replies()
        self._commit_replies: Replies[wire.Commits] = Replies(PAGES_KEPT)

    def handlers(self, traffic: CoordinatorTraffic) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """The handlers of the unary calls, with counted bytes."""
        decoder, encoder = traffic.counted_decoder, traffic.counted_encoder
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetRun": unary(
                self.GetRun,
                decoder(wire.GetRunRequest.FromString),
                encoder(wire.Run.SerializeToString, "catch_up"),
            ),
            "GetCommits": unary(
                self.GetCommits,
                decoder(wire.GetCommitsRequest.FromString),
                encoder(wire.Commits.SerializeToString, "catch_up"),
            ),
            "GetStatus": unary(
                self.GetStatus,
                decoder(wire.GetStatusRequest.FromString),
                encoder(wire.Status.SerializeToString),
            ),
            "GetMembers": unary(
                self.GetMembers,
                decoder(wire.GetMembersRequest.FromString),
                encoder(wire.Members.SerializeToString),
            ),
            "PutCheckpoint": unary(
                self.PutCheckpoint,
                decoder(wire.CheckpointPart.FromString),
                encoder(wire.CheckpointReply.SerializeToString),
            ),
        }

    async def GetRun(self, request: wire.GetRunRequest, context: Context) -> wire.Run:
        """The run file, the run's name and the key that signs its commits."""
        await self._answers(context)
        rounds = self._sequencer.rounds
        return wire.Run(
            protocol_version=PROTOCOL_VERSION,
            run_id=rounds.run_id,
            run_json=run_json(rounds.spec),
            coordinator_key=self._key,
        )

    async def GetCommits(self, request: wire.GetCommitsRequest, context: Context) -> wire.Commits:
        """Commits after a round, oldest first, as many as fit one reply."""
        host = await self._answers(context)
        decided, head = self._sequencer.decided_round, self._sequencer.head_round
        after_round = max(-1, min(request.after_round, decided))
        place = after_round, decided, head, request.for_audit

        async def page() -> wire.Commits:
            return await asyncio.to_thread(self._commits, *place)

        reply = await self._commit_replies.get(place, page)
        self._door.charge_catch_up(host, reply.ByteSize())
        return reply

    def _commits(self, after_round: int, decided: int, head: int, for_audit: bool) -> wire.Commits:
        page = self._journal.commits(after_round, COMMITS_PER_REPLY, for_audit=for_audit)
        recorded = [row for row in page if row.round <= decided]
        last = recorded[-1].round if recorded else head
        entries = self._journal.entries(after_round + 1, last)
        return coordinator_messages.commits_reply(recorded, decided, head, entries)

    async def GetStatus(self, request: wire.GetStatusRequest, context: Context) -> wire.Status:
        """The document of /status.json, at most a second old."""
        await self._answers(context)

        async def status() -> wire.Status:
            return wire.Status(json=msgspec.json.encode(self._status()))

        return await self._status_replies.get("status", status)

    async def GetMembers(self, request: wire.GetMembersRequest, context: Context) -> wire.Members:
        """The member list, for a node that is no member itself, at most a second old."""
        await self._answers(context)

        async def members() -> wire.Members:
            return member_list.members_message(self._sequencer.rounds.members, self.relays)

        return await self._member_replies.get("members", members)

    async def PutCheckpoint(
        self, request: wire.CheckpointPart, context: Context
    ) -> wire.CheckpointReply:
        """A part of the files that a member was asked for."""
        await self._answers(context)
        return await self.checkpoints.take(request)

    async def _answers(self, context: Context) -> str:
        """The host of a caller; the call ends here when it makes too many."""
        self._visitors.hear(context.peer())
        host = self._host(context)
        if refusal := self._door.refuses_call(host):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        return host

    def _host(self, context: Context) -> str:
        return host_of(self._visitors.remote(context.peer()))
