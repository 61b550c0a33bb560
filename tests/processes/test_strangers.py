"""Strangers who mean harm, against a public run of real processes: each attack of
`tests.processes.strangers` for some seconds, on one run after the other.

No process may end, no honest node be blamed, the coordinator's memory, journal and logs stay small,
and all states stay equal. The run must keep half of its quiet pace here, because other work on the
machine makes short times uneven; how much it keeps is measured by `tests.benchmarks.strangers`.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.commands.status import ask, render
from lockstep.console import output
from lockstep.run_file import write_run_file
from protocol import wire_pb2 as wire
from protocol.ids import RunId
from tests.processes.strangers.catalogue import ATTACKS
from tests.processes.strangers.client import Stranger, Target
from tests.processes.strangers.run import PublicRun, Watch, public_spec
from tests.processes.strangers.texts import FORGED, MARKUP
from tests.processes.strangers.trial import Lengths, play
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus

pytestmark = pytest.mark.slow

LENGTHS = Lengths(quiet_s=5, attack_s=8, after_s=3)

PACE_KEPT_MIN = 0.5
"""Commits during an attack over those of the quiet time: see the module."""

MEMORY_BYTES = 64_000_000
"""Growth of the coordinator's memory under one attack, at most."""

JOURNAL_BYTES = 1_000_000
"""Growth of the journal in a minute with an attack, at most, beyond the honest commits."""

LOG_BYTES = 100_000
"""The same of all logs."""

LOSS_MAX = 10.0
"""A network that knows nothing of 257 tokens has a loss of 5.5."""

ALONE_S = 10.0
"""Time of strangers without an honest node."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PublicRun, Watch]]:
    """The run, with some commits behind it."""
    with PublicRun(tmp_path_factory.mktemp("strangers")) as run, Watch(run) as watch:
        yield run, watch


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_attack_costs_the_run_little_and_honest_nodes_nothing(
    name: str, attacked: tuple[PublicRun, Watch]
) -> None:
    run, watch = attacked
    outcome = play(run, watch, name, LENGTHS)
    assert outcome.did.get(ATTACKS[name].act), f"expected it to be played, got {outcome.did}"
    assert outcome.faults == ()
    assert outcome.seconds_to_settle < 10, outcome
    assert min(outcome.during, outcome.honest_during) >= PACE_KEPT_MIN, outcome
    assert outcome.memory_bytes <= MEMORY_BYTES, outcome
    assert outcome.journal_bytes <= JOURNAL_BYTES, outcome
    assert outcome.log_bytes <= LOG_BYTES, outcome
    assert outcome.loss < LOSS_MAX, outcome
    digests = run.status()["digests"]
    assert (outcome.disputed, digests["agreed"]) == (0, True)
    assert digests["rounds_checked"] > 0
    assert not run.status()["audit"]["alarm"]


def test_names_command_no_terminal_and_forge_no_line(
    attacked: tuple[PublicRun, Watch], capsys: pytest.CaptureFixture[str]
) -> None:  # F20, F23
    run, _ = attacked
    address = run.cluster.address

    async def join() -> None:
        marked = Stranger(address, run.run_id)
        await marked.join_ready(name=MARKUP)
        document = await asyncio.to_thread(ask, address)
        while MARKUP not in [member["name"] for member in document["members"]]:
            await asyncio.sleep(0.3)  # a status may be a second old
            document = await asyncio.to_thread(ask, address)
        for part in render(document):
            output.print(part)
        await marked.say(leave=wire.Leave())
        await marked.close()

    asyncio.run(join())
    assert MARKUP in capsys.readouterr().out
    for child in run.children:
        log = child.log.read_text(encoding="utf-8", errors="replace")
        assert not [line for line in log.splitlines() if line.endswith(f"coordinator {FORGED}")]
        assert "\x1b" not in log
        assert "\x07" not in log


def test_strangers_alone_make_no_step(tmp_path: Path) -> None:  # F4
    run_file = tmp_path / "run.toml"
    write_run_file(run_file, public_spec(), force=True)
    data = tiny_corpus(tmp_path / "data")
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=0)) as cluster:
        for peer in ("a" * 32, "b" * 32, "c" * 32):
            cluster.coordinator.arguments += ("--vouch", peer)
        cluster.start()
        watch_until(cluster, lambda: cluster.coordinator.status.get("run_id"), "a status")
        run_id = RunId(cluster.coordinator.status["run_id"])
        told = asyncio.run(_confirm_each_other(cluster.address, run_id, tmp_path))
        cluster.watch()
        status = cluster.coordinator.status
        assert told["ready"] == 2
        assert told["opened"] == 0
        assert committed(cluster) == 0
        assert (status["steps"]["skipped"], status["finished"]) == (0, False)
        assert "members with standing: 0 of 3 are ready" in status["reason"]
        assert cluster.coordinator.exit_status is None


async def _confirm_each_other(address: str, run_id: RunId, directory: Path) -> dict[str, int]:
    """Two keys that are ready before anybody else is, announce payloads, and confirm each other's;
    what they did, and the rounds that were opened to them.
    """
    target = Target(address, address, run_id, "127.0.0.1", directory)
    strangers = [target.stranger(), target.stranger()]
    digests = [bytes([number]) * 32 for number in (1, 2)]

    async def listen(stranger: Stranger) -> None:
        async for _ in stranger.opened():
            target.did["opened"] += 1

    for stranger in strangers:
        await stranger.hello()
        await stranger.hear("welcome")
        await stranger.ready(-1, 0xBAD)
        target.did["ready"] += 1
    listening = [asyncio.create_task(listen(stranger)) for stranger in strangers]
    async with asyncio.timeout(ALONE_S + 5):
        for _ in range(int(ALONE_S / 0.2)):
            for round in range(4):
                for stranger, own, other in zip(strangers, digests, digests[::-1], strict=True):
                    await stranger.announce(round, own)
                    await stranger.say(holding=wire.Holding(round=round, digests=[other]))
            await asyncio.sleep(0.2)
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    for stranger in strangers:
        await stranger.close()
    return dict(target.did) | {"opened": target.did["opened"]}
