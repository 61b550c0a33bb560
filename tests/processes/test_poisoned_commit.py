"""Two keys have a payload committed that nobody has, and leave. The run goes on within a minute,
and its log replays to the same bits.

One key, ready, announces the digest of nothing; the other says that it holds the payload.
"""

import asyncio
import time
from pathlib import Path

import pytest

from coordinator.journal import JOURNAL_NAME, Journal
from lockstep.audit.findings import Findings
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol import wire_pb2 as wire
from protocol.codec.commits import SignedCommit, open_commit
from protocol.ids import sha256
from tests.coordinator.client import ScriptedNode, node_key
from tests.processes.faulty import replayed
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

STEPS = 40
NODES = 2
NOTHING = sha256(b"the bytes of nothing")

SOON_S = 60
"""Time within which the honest nodes must go on, on a quiet machine."""

SLOWNESS = 4
"""Other work may make this machine slower by so much."""


async def poison(address: str) -> int:
    """The attack; returns the round that it poisons."""
    probe = ScriptedNode(address, "", node_key(1))  # type: ignore[arg-type]
    run = await probe.stub.GetRun(wire.GetRunRequest(), timeout=SOON_S)
    async with (
        ScriptedNode(address, run.run_id, node_key(1)) as author,
        ScriptedNode(address, run.run_id, node_key(2)) as holder,
    ):
        await holder.join(ready=False)
        welcome = await author.join(ready=False)
        reply = await probe.stub.GetCommits(
            wire.GetCommitsRequest(after_round=welcome.head_round - 4), timeout=SOON_S
        )
        known = next(row for row in reversed(reply.commits) if row.digest_reports)
        commit = open_commit(SignedCommit(known.body, known.signature), run.coordinator_key)
        ready = wire.Ready(round=commit.round, state_digest=known.state_digest)
        await author.say(wire.NodeMessage(ready=ready))
        round = (await author.hear("opened")).opened.round
        await author.announce(round, digest=NOTHING)
        await holder.say(wire.NodeMessage(holding=wire.Holding(round=round, digests=[NOTHING])))
        while True:
            told = (await holder.hear("committed")).committed.commit
            commit = open_commit(SignedCommit(told.body, told.signature), run.coordinator_key)
            if commit.round >= round:
                break
        assert NOTHING in [entry.digest for entry in commit.entries], "the attack has failed"
        for node in (author, holder):
            await node.say(wire.NodeMessage(leave=wire.Leave(reason="done")))
            await node.call.done_writing()
            await node.hear_end()
    await probe.channel.close()
    return round


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, int, float]:
    """A run to its end with two honest nodes; the poisoned round; seconds until the next commit."""
    directory = tmp_path_factory.mktemp("poisoned")
    data, run_file = tiny_corpus(directory / "data"), directory / "run.toml"
    spec = tiny_spec(
        steps=STEPS,
        members=NODES,
        compute_ms=1_000,
        publish_ms=1_000,
        exchange_ms=1_000,
        stretch=2,
    )
    write_run_file(run_file, spec, force=True)
    with Cluster(ClusterSettings(directory, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 3, "three commits")
        round = asyncio.run(poison(cluster.address))
        poisoned_s, steps = time.monotonic(), 0
        cluster.watch()
        steps = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) >= steps + 3, "further commits", 240)
        seconds = time.monotonic() - poisoned_s
        watch_until(cluster, lambda: cluster.finished, "the end of the run", 240)
        cluster.wait()
    return cluster, round, seconds


def test_the_honest_nodes_go_on_within_a_minute(attacked: tuple[Cluster, int, float]) -> None:
    cluster, _, seconds = attacked
    print(f"three more commits {seconds:.1f} s after the attack")
    assert seconds < SLOWNESS * SOON_S
    assert [node.restarts for node in cluster.nodes] == [0] * NODES
    assert [node.status["resyncs"] for node in cluster.nodes] == [0] * NODES


def test_all_replicas_are_equal_at_the_end(attacked: tuple[Cluster, int, float]) -> None:
    cluster, _, _ = attacked
    status = cluster.coordinator.status
    assert status["steps"]["committed"] == STEPS
    assert {node.status["state_digest"] for node in cluster.nodes} == {status["digests"]["last"]}
    assert status["digests"]["rounds_disputed"] == 0


def test_the_chain_says_that_the_payload_is_void_and_an_audit_understands_it(
    attacked: tuple[Cluster, int, float],
) -> None:
    cluster, round, _ = attacked
    directory: Path = cluster.coordinator.directory.parent
    journal = Journal(directory / "coordinator" / JOURNAL_NAME)
    (row,) = journal.entries(0, 10_000)
    journal.close()
    findings: Findings = replayed(directory, [f"node-{number}" for number in range(NODES)])
    assert row.round == round
    assert row.after_round >= round
    assert (findings.voids, findings.commits, findings.replayed) == (1, STEPS, STEPS)
    assert findings.state_digest == cluster.coordinator.status["digests"]["last"]
