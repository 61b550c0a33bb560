"""A laboratory for real: links as asked, lines cut and mended, and nothing left behind whoever was
killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.wan.lab import laboratory as lab_module
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Laboratory, namespaces
from lockstep.wan.lab.probe import measure, udp_socket
from lockstep.wan.lab.topology import LabHome, Plan, RegionDistance
from lockstep.wan.link_check import measure_all
from lockstep.wan.profiles import read_profiles
from protocol.errors import LocalProtocolError, UnavailableError
from tests.lockstep.shared import wait_for_end
from tests.lockstep.wan.lab.fixture import (
    PATIENCE_S,
    SILENCE_S,
    arrives,
    endpoint,
    eventually,
    heard,
    needs_ground,
)

pytestmark = pytest.mark.slow

PROFILES = {"node-0": "cable", "node-1": "dsl", "node-2": "fibre"}
SMALL = HomeLink(LinkDirection(4_000_000, 0.01), LinkDirection(8_000_000, 0.01))
ONE_WAY_S = 0.05

OWNER = """
import sys
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.topology import LabHome, Plan
with Laboratory(Plan((LabHome("node-0"), LabHome("node-1", nat="masquerade")))) as lab:
    lab.start("node-0", ["sleep", "1000"])
    print(lab.id, lab.guard_pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Laboratory]:
    homes = (
        LabHome("small", SMALL, region="here"),
        LabHome("far", region="there"),
        LabHome("shy", SMALL, nat="masquerade", region="here"),
    )
    with Laboratory(Plan(homes, (RegionDistance("here", "there", ONE_WAY_S),))) as laboratory:
        yield laboratory


@needs_ground
def test_links_measure_as_asked_in_every_figure() -> None:
    homes = tuple(
        LabHome(
            name,
            read_profiles().profile(profile).link(),
            nat="masquerade" if name == "node-1" else "none",
        )
        for name, profile in PROFILES.items()
    )
    with Laboratory(Plan(homes)) as laboratory:
        links = measure_all(laboratory, PROFILES, lambda done, total: None)
    assert [fault for link in links for fault in link.deviations()] == []
    assert [link.asked_down_bit_s for link in links] == [220e6, 16e6, 300e6]


@needs_ground
def test_the_round_trip_between_regions_is_twice_their_distance(lab: Laboratory) -> None:
    trips_s = []
    with endpoint(lab, "small") as here, endpoint(lab, "far") as there:
        for _ in range(5):
            begin_s = time.monotonic()
            here.sendto(b"hello", (lab.address("far"), there.getsockname()[1]))
            source = heard(there, PATIENCE_S)
            assert source is not None
            there.sendto(b"hello", source)
            assert heard(here, PATIENCE_S)
            trips_s.append(time.monotonic() - begin_s)
    expected_s = SMALL.rtt_s + 2 * ONE_WAY_S
    assert expected_s - 0.001 <= min(trips_s) < 1.5 * expected_s


@needs_ground
def test_a_slowed_line_has_that_share_of_its_rates_until_it_is_mended(lab: Laboratory) -> None:
    name = "shy"
    place = lab.places[name]
    with lab.inside(name):
        home = udp_socket(place.address)
    with namespaces.inside(place.internet):
        internet = udp_socket(place.gateway)
    with home, internet:
        lab.slow(name, 0.25)
        slowed = measure(home, internet, SMALL.slowed(0.25))
        lab.restore(name)
        mended = measure(home, internet, SMALL)
    assert slowed.up_bit_s == pytest.approx(1e6, rel=0.2)
    assert slowed.down_bit_s == pytest.approx(2e6, rel=0.2)
    assert mended.up_bit_s == pytest.approx(4e6, rel=0.2)


@needs_ground
@pytest.mark.parametrize("name", ["small", "shy"])
def test_a_line_can_be_cut_both_ways_or_one_way_and_be_mended(lab: Laboratory, name: str) -> None:
    with endpoint(lab, name) as home, endpoint(lab, "far") as far:
        target = lab.address("far"), far.getsockname()[1]
        home.sendto(b"hello", target)
        source = heard(far, PATIENCE_S)
        assert source is not None
        heards = {}
        for way in ("both", "up", "down"):
            lab.cut(name, way)
            heards[way] = (
                arrives(home, far, target, SILENCE_S),
                arrives(far, home, source, SILENCE_S),
            )
            lab.restore(name)
            assert eventually(lambda: arrives(home, far, target, SILENCE_S))
            assert eventually(lambda: arrives(far, home, source, SILENCE_S))
    assert heards == {"both": (False, False), "up": (False, True), "down": (True, False)}


@needs_ground
def test_a_home_that_moves_has_another_address_and_not_the_old_one(lab: Laboratory) -> None:
    with endpoint(lab, "small") as home, endpoint(lab, "far") as far:
        target = lab.address("far"), far.getsockname()[1]
        lab.move("small")
        home.sendto(b"hello", target)
        moved = heard(far, PATIENCE_S)
        assert moved is not None
        assert (
            moved[0]
            == lab.places["small"].public_address(moved=True)
            != lab.public_address("small")
        )
        assert not arrives(far, home, (lab.public_address("small"), moved[1]), SILENCE_S)
        lab.move("small", back=True)
        assert eventually(
            lambda: arrives(far, home, (lab.public_address("small"), moved[1]), SILENCE_S)
        )


@needs_ground
def test_the_counters_count_whole_frames_of_each_way(lab: Laboratory) -> None:
    before = lab.counters("small")
    with endpoint(lab, "small") as home, endpoint(lab, "far") as far:
        for _ in range(10):
            home.sendto(bytes(958), (lab.address("far"), far.getsockname()[1]))
        assert heard(far, PATIENCE_S)
        assert eventually(lambda: lab.counters("small").up_bytes - before.up_bytes >= 10_000)
    after = lab.counters("small")
    assert after.up_bytes - before.up_bytes < 10_500
    assert after.down_bytes - before.down_bytes < 500


@needs_ground
def test_a_command_prefix_runs_it_on_that_computer(lab: Laboratory) -> None:
    shown = subprocess.run(
        lab.command("shy", ["ip", "-j", "addr"]), capture_output=True, check=True
    ).stdout
    addresses = {info["local"] for device in json.loads(shown) for info in device["addr_info"]}
    assert "192.168.1.2" in addresses
    assert lab.public_address("shy") not in addresses


def test_a_computer_that_is_not_there_is_our_own_mistake() -> None:
    unbuilt = Laboratory(Plan((LabHome("node-0"),)))
    with pytest.raises(LocalProtocolError, match="expected one of node-0, got 'node-1'"):
        unbuilt.address("node-1")
    with pytest.raises(LocalProtocolError, match="can only be cut in both directions"):
        unbuilt.cut("node-0", "up")


@needs_ground
def test_a_line_whose_process_was_killed_is_noticed() -> None:
    with Laboratory(Plan((LabHome("node-0", SMALL),))) as laboratory:
        laboratory.check()
        (pid,) = (int(pid) for pid in processes(laboratory.places["node-0"].namespace))
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        with pytest.raises(UnavailableError, match="node-0"):
            laboratory.check()
        with pytest.raises(UnavailableError, match="node-0"):
            laboratory.slow("node-0", 0.5)


@needs_ground
def test_leaving_kills_every_process_and_removes_every_namespace() -> None:
    with Laboratory(
        Plan((LabHome("node-0", SMALL), LabHome("node-1", nat="masquerade")))
    ) as laboratory:
        stubborn = laboratory.start("node-1", ["sh", "-c", "trap '' TERM; sleep 1000"])
        assert len(namespaces.laboratories()[laboratory.id]) == 4
    assert stubborn.wait(PATIENCE_S) == -signal.SIGKILL
    assert laboratory.id not in namespaces.laboratories()
    assert not (namespaces.RUN_DIRECTORY / f"{laboratory.id}.lock").exists()


@needs_ground
def test_a_laboratory_whose_building_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UnavailableError("no NAT today")

    monkeypatch.setattr(lab_module, "masquerade", refuse)
    laboratory = Laboratory(Plan((LabHome("node-0", SMALL), LabHome("node-1", nat="masquerade"))))
    with pytest.raises(UnavailableError, match="no NAT today"):
        laboratory.__enter__()
    assert laboratory.id not in namespaces.laboratories()


@pytest.fixture
def owner() -> Iterator["subprocess.Popen[str]"]:
    """Another process with a laboratory of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def announced(owner: "subprocess.Popen[str]") -> tuple[str, int]:
    """The ID of its laboratory and the process of its guard."""
    assert owner.stdout is not None
    laboratory, guard = owner.stdout.readline().split()
    return laboratory, int(guard)


@needs_ground
def test_a_laboratory_whose_owner_is_killed_is_removed_by_its_guard(
    owner: "subprocess.Popen[str]",
) -> None:
    laboratory, _ = announced(owner)
    assert len(namespaces.laboratories()[laboratory]) == 4
    owner.kill()
    assert eventually(lambda: laboratory not in namespaces.laboratories())
    assert eventually(lambda: not (namespaces.RUN_DIRECTORY / f"{laboratory}.lock").exists())


@needs_ground
def test_a_guard_whose_pipe_ends_before_the_lock_is_free_waits_for_it() -> None:
    """The kernel closes what a killed process had open in no order that could be relied on."""
    laboratory = "0dead0"
    namespace = f"lockstep-{laboratory}-node-0"
    ownership = namespaces.Ownership(laboratory)
    namespaces.add(namespace, forwards=False)
    with subprocess.Popen(
        [sys.executable, "-m", "lockstep.wan.lab.guard", laboratory], stdin=subprocess.DEVNULL
    ) as guard:
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(4 * SILENCE_S)
        assert namespaces.exists(namespace)
        os.close(ownership._descriptor)
        assert guard.wait(PATIENCE_S) == 0
    assert not namespaces.exists(namespace)


@needs_ground
def test_down_removes_what_a_killed_owner_and_guard_left_and_nothing_in_use(
    owner: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    laboratory, guard = announced(owner)
    assert main(["wan", "down"]) == ExitCode.OK
    assert (
        f"kept: laboratory {laboratory} is in use by process {owner.pid}" in capsys.readouterr().err
    )
    assert laboratory in namespaces.laboratories()
    (sleeper,) = processes(f"lockstep-{laboratory}-node-0")
    os.kill(guard, signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert laboratory in namespaces.laboratories()
    assert main(["wan", "down"]) == ExitCode.OK
    assert "removed 4 namespaces" in capsys.readouterr().out
    assert laboratory not in namespaces.laboratories()
    wait_for_end(int(sleeper))
    assert main(["wan", "down"]) == ExitCode.OK


def processes(namespace: str) -> list[str]:
    """Process IDs in a namespace."""
    return subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True
    ).stdout.split()
