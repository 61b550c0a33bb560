"""A run of real processes whose majority lies about its states: the word of the auditor that the
operator has named decides against them, and the honest node is not touched.
"""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.ids import RunId
from tests.coordinator.client import ScriptedNode, node_key
from tests.processes.operating import operate
from tests.processes.watching import PATIENCE_S, committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

WRONG = 0xBAD
LIARS = 2
GOODBYE_S = 30.0
SAMPLES = 300
"""Of a round: about a second's work, which an auditor beside it replays in less."""

STEPS = 100_000
"""The run does not come to its end by itself."""


class Liars:
    """Scripted members that train nothing, hold nothing, and report wrong states: only the auditor
    gives the honest node's payloads the copy that they need.
    """

    def __init__(self, address: str, run_id: str) -> None:
        self._address, self._run_id = address, RunId(run_id)
        self.ends: list[str] = []
        """Reasons for which the coordinator removed or refused them."""
        self.resyncs = 0
        self._stopping = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        tasks = [asyncio.create_task(self._lie(number)) for number in range(1, 1 + LIARS)]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lie(self, number: int) -> None:
        async with ScriptedNode(self._address, self._run_id, node_key(number)) as node:
            await node.say(node.hello(await node.connect()))
            await node.hear("welcome")
            await self._ready(node, 0)
            beating = asyncio.create_task(self._beat(node))
            try:
                while (message := await node.call.read()) is not grpc.aio.EOF:
                    await self._answer(node, message)
            finally:
                beating.cancel()

    async def _answer(self, node: ScriptedNode, message: wire.CoordinatorMessage) -> None:
        match message.WhichOneof("kind"):
            case "evicted" | "refused" as kind:
                self.ends.append(getattr(message, kind).reason)
            case "resync":
                self.resyncs += 1
                await self._ready(node, message.resync.number)
            case "opened":
                await node.announce(message.opened.round, digest=b"", payload_bytes=0, samples=0)
            case "committed":
                body = message.committed.commit.body
                round = msgspec.msgpack.decode(body, type=Commit).round
                lie = wire.Applied(round=round, state_digest=WRONG)
                await node.say(wire.NodeMessage(applied=lie))
            case _:
                pass

    async def _ready(self, node: ScriptedNode, resyncs: int) -> None:
        ready = wire.Ready(round=-1, state_digest=WRONG, resyncs=resyncs)
        await node.say(wire.NodeMessage(ready=ready))

    async def _beat(self, node: ScriptedNode) -> None:
        while True:
            await node.say(wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=1)))
            await asyncio.sleep(0.5)


def audit(cluster: Cluster) -> dict[str, Any]:
    cluster.coordinator.refresh()
    return dict(cluster.coordinator.status.get("audit") or {})


@pytest.mark.slow
def test_a_lying_majority_is_removed_on_the_auditors_word_and_the_honest_node_goes_on(
    tmp_path: Path,
) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    work = {"batch_samples_max": SAMPLES, "share_samples_first": SAMPLES}
    write_run_file(run_file, tiny_spec(steps=STEPS, members=1, quorum=1, **work), force=True)
    place = tmp_path / "auditor"
    options = ["--listen", "127.0.0.1:0", "--threads", "1", "--admin", "127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    auditor = Child("auditor", place, ["auditor", "--directory", str(place), *options], environment)
    with (
        Cluster(ClusterSettings(tmp_path, run_file, data, nodes=1)) as cluster,
        contextlib.ExitStack() as stack,
    ):
        cluster.start()
        auditor.start(cluster.address)
        stack.callback(lambda: auditor.wait(time.monotonic() + GOODBYE_S))
        stack.callback(auditor.ask_to_leave)

        def key() -> str:
            auditor.refresh()
            return str(auditor.status.get("peer_id") or "")

        watch_until(
            cluster,
            lambda: key() and f"lockstep run auditor add {key()}" in auditor.log.read_text(),
            "an auditor that says how it is named",
        )
        operate(tmp_path, "auditor", "add", key())
        assert key() in operate(tmp_path, "auditor", "list")
        watch_until(
            cluster,
            lambda: any(each["round"] is not None for each in audit(cluster).get("auditors", ())),
            "a word of the auditor",
        )
        liars = Liars(cluster.address, cluster.coordinator.status["run_id"])
        try:
            watch_until(cluster, lambda: len(liars.ends) >= LIARS, "the end of the liars")
        finally:
            liars.stop()
        assert all("computes wrong results" in reason for reason in liars.ends), liars.ends
        after = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) > after + 2, "further commits")
        log = cluster.coordinator.log.read_text().splitlines()
        told = [line for line in log if "told to resync" in line]
        honest = cluster.nodes[0].status["peer_id"]
        assert told
        assert not [line for line in told if honest in line]
        assert audit(cluster)["alarm"] == ""
