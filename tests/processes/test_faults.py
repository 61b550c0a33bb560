"""Everything that may happen to a process or a wire happens to one run, one thing after the other.
After each: nothing that was committed has changed, every node's payload counts again, and all
report one digest.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from protocol.sections.retention import RetentionSpec
from tests.processes.faulty import FaultyCluster, replayed, running
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

NODES = 3

LEASE_MS = 12_000
"""More than twice as long as a slot may grow up to its `publish_by`: a round waits that long for a
node that sleeps."""

DISK_BYTES = 64 * 1024 * 1024
"""Size of the small disks: the state of a tiny node and some thousands of its payloads."""

FILLER = "filler"


def small_disk(directory: Path) -> bool:
    """Mount a disk of `DISK_BYTES` there; False where that is not allowed."""
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool]]:
    """The cluster's directory, and whether node 2 and the coordinator have small disks in it."""
    directory = tmp_path_factory.mktemp("faults")
    places = [directory / "node-2", directory / "coordinator"]
    mounted = [place for place in places if small_disk(place)]
    for place in mounted:  # last words must not be lost with the disk
        (place / "log.txt").symlink_to(directory / f"{place.name}.log")
    yield directory, len(mounted) == len(places)
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def cluster(disks: tuple[Path, bool]) -> Iterator[FaultyCluster]:
    """Three nodes of a run without an end, two of which are a quorum, all of them counted."""
    directory, _ = disks
    spec = tiny_spec(
        steps=1_000_000,
        members=NODES,
        quorum=2,
        lease_ms=LEASE_MS,
        compute_ms=1_500,
        publish_ms=1_000,
        exchange_ms=2_000,
        stretch=2,
        # a round costs many times its replay: a node that lags can catch up
        batch_samples_max=600,
        share_samples_first=100,
    ).model_copy(update={"retention": RetentionSpec(log_rounds=1_000_000, snapshot_every=50)})
    write_run_file(directory / "run.toml", spec, force=True)
    settings = ClusterSettings(
        directory, directory / "run.toml", tiny_corpus(directory / "data"), NODES
    )
    with running(FaultyCluster(settings)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def unharmed(cluster: FaultyCluster) -> Iterator[None]:
    """The promise of this file, which holds after every fault."""
    before, head = cluster.signed(), cluster.head()
    yield
    if cluster.left:
        return
    cluster.resume_all()
    cluster.until(lambda: cluster.counted(head, *range(NODES)))
    healed = cluster.head()
    cluster.until(lambda: cluster.agreed(healed, NODES))
    assert cluster.signed()[: len(before)] == before, "a decision has changed"
    assert cluster.coordinator.status["digests"]["rounds_disputed"] == 0
    assert [node.status["resyncs"] for node in cluster.nodes] == [0] * NODES


def went_on(cluster: FaultyCluster, rounds: int = 3) -> Callable[[], bool]:
    """A condition that holds once `rounds` more rounds than now are committed."""
    head = cluster.head()
    return lambda: len(cluster.commits(head)) >= rounds


def members(cluster: FaultyCluster) -> set[str]:
    """Peers that hold a lease, by the coordinator's newest status."""
    return {member["peer_id"] for member in cluster.coordinator.status.get("members", ())}


# ---- processes


def test_the_others_go_on_without_a_killed_node_which_comes_back(cluster: FaultyCluster) -> None:
    cluster.kill(1)
    cluster.until(went_on(cluster), watch=False)
    head = cluster.head()
    cluster.until(lambda: cluster.counted(head, 1))


def test_a_node_that_slept_longer_than_its_lease_joins_again_as_the_same_process(
    cluster: FaultyCluster,
) -> None:
    peer, pid = cluster.peer(1), cluster.nodes[1].pid
    cluster.pause(1)
    cluster.until(lambda: peer not in members(cluster))
    head = cluster.head()
    cluster.resume(1)
    cluster.until(lambda: cluster.counted(head, 1))
    assert cluster.nodes[1].pid == pid
    away = re.findall(r"was away seconds=([\d.]+)", cluster.nodes[1].log.read_text())
    assert away
    lease_s, since_last_word_s = LEASE_MS / 1000, 2
    assert float(away[-1]) >= lease_s - since_last_word_s, "the length of the sleep"


def test_a_coordinator_that_slept_blames_nobody_for_the_silence(cluster: FaultyCluster) -> None:
    cluster.pause(None)
    asleep = cluster.head()
    cluster.until(lambda: all(node.status["session"] != "connected" for node in cluster.nodes))
    assert cluster.head() == asleep, "nobody goes on alone"
    cluster.resume(None)
    cluster.until(went_on(cluster))
    assert members(cluster) == {cluster.peer(number) for number in range(NODES)}


@pytest.mark.parametrize(
    "boundary",
    [
        "opened",
        "bell",
        "publish_by",
        "commit",
    ],
)
def test_a_coordinator_killed_at_a_boundary_goes_on_from_its_journal(
    cluster: FaultyCluster, boundary: str
) -> None:
    cluster.until(lambda: strikes(cluster, 2) == 0)  # else nobody waits for it
    cluster.pause(2)  # a round that waits for it goes through every instant
    cluster.until(boundary_of_a_round(cluster, boundary), watch=False)
    cluster.kill(None)
    killed_at, known = cluster.head(), cluster.signed()
    cluster.until(went_on(cluster))
    assert cluster.signed()[: len(known)] == known
    assert cluster.head() > killed_at


def strikes(cluster: FaultyCluster, number: int) -> int | None:
    """The strikes of a node, as the coordinator's status has them; None while it is no member."""
    members = cluster.coordinator.status.get("members", ())
    found = [each["strikes"] for each in members if each["peer_id"] == cluster.peer(number)]
    return found[0] if found else None


def boundary_of_a_round(cluster: FaultyCluster, boundary: str) -> Callable[[], bool]:
    """Does the journal say that a round that came after now has got there?"""
    newest = "SELECT coalesce(max(sequence), 0) FROM events"
    ((sequence,),), head = cluster.query(newest), cluster.head()
    if (
        boundary == "opened"
    ):  # the first word about a round says that it is open, and that its bell has not rung
        sql, arguments = (
            "SELECT 1 FROM events WHERE sequence > ? AND kind = 'Announced'",
            (sequence,),
        )
    elif boundary == "commit":
        sql, arguments = "SELECT 1 FROM commits WHERE round > ?", (head,)
    else:
        sql = (
            "SELECT 1 FROM events WHERE sequence > ? AND kind = 'InstantReached' "
            "AND instr(body, CAST(? AS BLOB)) > 0"
        )
        arguments = (sequence, boundary)
    return lambda: bool(cluster.query(sql, *arguments))


def test_a_copied_directory_does_not_evict_the_node_at_work(cluster: FaultyCluster) -> None:
    """As under `while true` on both machines: the copy is refused each time, the node works on, and
    a successor of the node itself is welcome.
    """
    at_work, twin = cluster.nodes[1], cluster.child("twin")
    ignored = shutil.ignore_patterns("*.txt", "process.json", "control")  # the last is a socket
    shutil.copytree(at_work.directory, twin.directory, ignore=ignored)
    pid = at_work.pid
    for _ in range(2):
        twin.start(cluster.address)
        cluster.until(lambda: twin.exit_status is not None, watch=False)
        assert twin.wait(time.monotonic()) == ExitCode.REFUSED
        assert "this key is at work at 127.0.0.1:" in twin.last_words()
        assert "give this machine a directory of its own" in twin.last_words()
    cluster.watch()
    assert (at_work.pid, at_work.exit_status) == (pid, None)
    assert "tried to join with this key" in at_work.status["notice"]
    head = cluster.head()
    cluster.until(lambda: cluster.counted(head, 1), watch=False)
    cluster.kill(1)
    cluster.revive()
    head = cluster.head()
    cluster.until(lambda: cluster.counted(head, 1), watch=False)


# ---- disks


@contextlib.contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Not one more byte fits there, meanwhile."""
    filler = directory / FILLER
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (1024 * 1024, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(piece)):
                    pass
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize(
    "number",
    [2, None],
    ids=["node", "coordinator"],
)
def test_a_full_disk_ends_a_process_with_words_and_a_free_one_lets_it_go_on(
    cluster: FaultyCluster, disks: tuple[Path, bool], number: int | None
) -> None:
    if not disks[1]:
        pytest.skip("needs root, to mount a small disk")
    child: Child = cluster.target(number)
    with full_disk(child.directory):
        cluster.until(lambda: child.exit_status is not None, watch=False)
        assert child.exit_status == ExitCode.STORAGE
        assert re.search("error: .*(disk is full|No space left)", log(child))
    if number is not None:
        cluster.until(went_on(cluster), watch=False)
    head = cluster.head()
    child.wait(time.monotonic())
    child.start(
        *(("--listen", cluster.address) if number is None else (cluster.lines[number].address,))
    )
    cluster.until(lambda: cluster.counted(head, 2))


# ---- wires


def test_a_bit_that_flips_on_the_wire_is_noticed_and_costs_only_the_link(
    cluster: FaultyCluster,
) -> None:
    for door in cluster.doors:
        door.corrupt()
    cluster.until(lambda: any(door.flipped for door in cluster.doors))
    cluster.until(lambda: all(door.dropped == door.flipped for door in cluster.doors))
    cluster.until(lambda: all(linked(node) == NODES - 1 for node in cluster.nodes))
    cluster.until(went_on(cluster))


def log(child: Child) -> str:
    """All that it and its predecessors have said."""
    return child.log.read_text(errors="replace")


def test_a_node_cut_off_from_the_coordinator_waits_and_never_goes_on_alone(
    cluster: FaultyCluster,
) -> None:
    peer = cluster.peer(0)
    cluster.lines[0].cut()
    cluster.until(lambda: peer not in members(cluster))
    cluster.until(went_on(cluster))
    cluster.nodes[0].refresh()
    assert cluster.nodes[0].status["round"] < cluster.head()
    assert "reconnecting" in cluster.nodes[0].status["session"]
    head = cluster.head()
    cluster.lines[0].mend()
    cluster.until(lambda: cluster.counted(head, 0))


def test_a_run_whose_nodes_cannot_reach_each_other_commits_again_when_they_can(
    cluster: FaultyCluster,
) -> None:
    for door in cluster.doors:
        door.cut()
    cluster.until(lambda: all(linked(node) == 0 for node in cluster.nodes))
    for door in cluster.doors:
        door.mend()
    cluster.until(went_on(cluster))


def linked(node: Child) -> int:
    """Open links to peers, by the node's newest status."""
    return len(node.status["links"]["open"])


# ---- the end


def test_the_log_replays_to_every_nodes_checkpoint_byte_for_byte(cluster: FaultyCluster) -> None:
    rounds = [commit.round for commit in cluster.commits()]
    assert rounds == sorted(set(rounds))
    cluster.leave()
    assert {child.exit_status for child in (*cluster.nodes, cluster.coordinator)} == {0}, (
        cluster.last_words()
    )
    findings = replayed(cluster.directory, [node.name for node in cluster.nodes])
    assert findings.commits == findings.replayed >= len(rounds)
    assert findings.digests_compared > len(rounds) // 2
