"""The calls to the coordinator that need no session: each has one request and one reply."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from node.control.channel import CALL_S, CoordinatorChannel
from node.control.described_run import checked_run
from node.control.members import MemberList
from node.system.backoff import Backoff
from node.traffic import Traffic
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from protocol.border.text import clean
from protocol.errors import LockstepError, RemoteProtocolError, SettingsError, UnavailableError
from protocol.ids import RunId
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

PAUSE_MS = (500, 5_000)
"""First and longest pause between two calls that fail one after the other."""

PART_S = 120
"""Longest wait for one part of a checkpoint to be taken: 17 kbit/s, or a slow disk."""

_CHECK = "check the address, that the coordinator runs, and the network of this machine"


class CoordinatorCalls:
    """Calls to the coordinator that a link names, over a channel of its own. They count in
    `traffic`, and keep `members` up to date. `decline(run_id, reason)` tells the coordinator that
    this node cannot train the run file.
    """

    def __init__(
        self,
        link: JoinLink,
        channel: CoordinatorChannel,
        *,
        traffic: Traffic,
        members: MemberList,
        decline: Callable[[RunId, str], Awaitable[None]],
    ) -> None:
        self._link, self._channel = link, channel
        self._traffic, self._members, self._decline = traffic, members, decline

    async def stub(self, timeout_s: float = CALL_S) -> Any:
        """The service; see `CoordinatorChannel.stub`."""
        try:
            return await self._channel.stub(timeout_s)
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {_CHECK}") from None

    async def fetch_run(self, timeout_s: float = 30) -> RunInfo:
        """The run, checked: its id must be the hash of the bytes that were received.

        Raises `UnavailableError` when the coordinator does not answer in time, `VersionError`,
        `SettingsError`.
        """
        try:
            stub = await self.stub(timeout_s)
            run = await stub.GetRun(wire.GetRunRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        self._traffic.catch_up_down += run.ByteSize()
        try:
            info = checked_run(run, self._link.address)
        except SettingsError as error:
            await self._decline(RunId(run.run_id), str(error))
            raise
        self._link.check(info.run_id, info.coordinator_key, self._channel.vouching)
        return info

    async def fetch_commits(self, after_round: int, *, for_audit: bool = False) -> wire.Commits:
        """Commits after a round, on request with all that an audit needs to know of their authors
        and summers; asks until the coordinator answers.
        """
        pauses = Backoff(*PAUSE_MS)
        while True:
            try:
                request = wire.GetCommitsRequest(after_round=after_round, for_audit=for_audit)
                self._traffic.control_up += request.ByteSize()
                stub = await self.stub()
                commits: wire.Commits = await stub.GetCommits(request, timeout=CALL_S)
                self._traffic.catch_up_down += commits.ByteSize()
                return commits
            except grpc.aio.AioRpcError as error:
                failure: LockstepError = self._unavailable(error)
            except (UnavailableError, RemoteProtocolError) as error:
                failure = error
            reason = str(failure)
            log.warning("commits not fetched", extra={"round": after_round, "reason": reason})
            await asyncio.sleep(pauses.next() / 1000 * random.uniform(0.5, 1.5))

    async def fetch_members(self) -> MemberList:
        """The run's members and relays, without a session.

        Raises `UnavailableError` when the coordinator does not answer in time.
        """
        try:
            stub = await self.stub()
            members = await stub.GetMembers(wire.GetMembersRequest(), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        self._traffic.control_down += members.ByteSize()
        self._members.update(members)
        return self._members

    async def put_checkpoint(self, part: wire.CheckpointPart) -> wire.CheckpointReply:
        """Send a part of a checkpoint; `UnavailableError` when it was not taken in time."""
        try:
            stub = await self.stub()
            self._traffic.catch_up_up += part.ByteSize()
            reply: wire.CheckpointReply = await stub.PutCheckpoint(part, timeout=PART_S)
            return reply
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: grpc.aio.AioRpcError) -> UnavailableError:
        self._channel.renew()
        silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        reason = "nobody answered in time" if silent else clean(error.details() or "")
        address = self._link.address
        return UnavailableError(f"cannot reach a coordinator at {address}: {reason}; {_CHECK}")
