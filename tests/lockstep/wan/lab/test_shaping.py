"""Shaping one interface: its figures, and its state afterwards."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.exit_codes import ExitCode
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.iproute import run_command, run_commands
from lockstep.wan.lab.laboratory import Laboratory, namespaces
from lockstep.wan.lab.shaping import TAP_ADDRESS, Lines, Shaping, in_words
from lockstep.wan.lab.tc_commands import words
from lockstep.wan.lab.topology import LabHome, Plan
from protocol.errors import SettingsError
from tests.lockstep.wan.lab.fixture import PATIENCE_S, needs_ground

LINK = HomeLink(
    LinkDirection(20_000_000, 0.0125, 0.002, 0.001),
    LinkDirection(220_000_000, 0.0125, 0.002, 0.001),
)
NAMESPACE = f"test-shape-{os.getpid()}"
"""Without the prefix: nobody's `lockstep wan down` may take it for a leftover while this process is
inside."""


def test_mechanism_and_figures_are_printed_in_one_line() -> None:
    assert in_words("eth0", LINK, "tbf+delay") == (
        "eth0: shaped by tbf+delay; asked for: up 20 Mbit/s 12.5 ms ± 2 ms 0.1 % lost, "
        "down 220 Mbit/s 12.5 ms ± 2 ms 0.1 % lost"
    )


def test_lines_come_whole_however_they_were_cut() -> None:
    read, write = os.pipe()
    lines = Lines(read)
    os.write(write, b"on")
    assert lines.read() == []
    os.write(write, b"e\ntwo\nthr")
    assert lines.read() == [b"one", b"two"]
    os.close(write)
    assert lines.read() is None
    os.close(read)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace with a cable that leads to itself; this thread is inside."""
    namespaces.add(NAMESPACE, forwards=False)
    try:
        with namespaces.inside(NAMESPACE):
            lines = (
                "ip link add eth0 type veth peer name far",
                "ip link set eth0 up",
                "ip link set far up",
            )
            run_commands([words(line) for line in lines])
            yield NAMESPACE
    finally:
        namespaces.remove([NAMESPACE])


@needs_ground
@pytest.mark.usefixtures("namespace")
def test_stopping_leaves_the_interface_as_it_was() -> None:
    rules, devices = run_command(words("tc qdisc show dev eth0")), _devices()
    shaping = Shaping("eth0", LINK)
    assert _devices() != devices
    shaping.stop()
    assert run_command(words("tc qdisc show dev eth0")) == rules
    assert _devices() == devices


def _devices() -> list[str]:
    """Names and kinds; whether a cable is in them the kernel says when it has the time."""
    found = run_command(words("ip -d -j link show"))
    return [f"{each['ifname']} {each.get('linkinfo')}" for each in json.loads(found)]


@needs_ground
@pytest.mark.usefixtures("namespace")
def test_an_interface_is_shaped_again_after_a_kill_left_its_rules() -> None:
    killed = Shaping("eth0", LINK)
    if killed._delay:
        killed._delay.close()  # what the kernel does to a killed process; its filters stay
    again = Shaping("eth0", LINK)
    assert run_command(words("tc qdisc show dev eth0")).count("clsact") == 1
    again.change(LINK.slowed(0.5))
    again.stop()
    assert "clsact" not in run_command(words("tc qdisc show dev eth0"))


@needs_ground
@pytest.mark.usefixtures("namespace")
def test_an_interface_that_is_not_there_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(SettingsError, match="'wlan0' here; expected one of eth0, far, lo"):
        Shaping("wlan0", LINK)


@needs_ground
@pytest.mark.usefixtures("namespace")
def test_an_interface_of_giant_frames_is_refused_and_left_as_it_was() -> None:
    run_command(words("ip link set eth0 mtu 9000"))
    with pytest.raises(SettingsError, match=r"eth0: expected an MTU of at most 1500, .* got 9000"):
        Shaping("eth0", LINK)
    assert "clsact" not in run_command(words("tc qdisc show dev eth0"))


@needs_ground
@pytest.mark.usefixtures("namespace")
def test_a_strict_reverse_path_filter_is_loosened_for_the_tap_alone() -> None:
    for name in ("all", "default"):
        Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("1")
    shaping = Shaping("eth0", LINK)
    try:
        if shaping.mechanism == "tbf+delay":
            assert Path("/proc/sys/net/ipv4/conf/down-eth0/rp_filter").read_text() == "2\n"
            assert TAP_ADDRESS in run_command(words("ip addr show dev down-eth0"))
        assert Path("/proc/sys/net/ipv4/conf/eth0/rp_filter").read_text() != "2\n"
    finally:
        shaping.stop()


def devices(lab: Laboratory, name: str) -> list[str]:
    """Network interfaces of a computer."""
    with lab.inside(name):
        return [device["ifname"] for device in json.loads(run_command(words("ip -j link show")))]


@needs_ground
def test_a_container_s_interface_is_shaped_until_the_command_is_told_to_leave() -> None:
    with Laboratory(Plan((LabHome("node-0"),))) as lab:
        before = devices(lab, "node-0")
        command = [sys.executable, "-m", "lockstep", "wan", "shape", "eth0", "--profile", "dsl"]
        with lab.start(
            "node-0", command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        ) as process:
            assert re.match(
                r"eth0: shaped by (netem|tbf\+delay); asked for: up 2 Mbit/s 20 ms",
                process.stdout.readline(),
            )
            found = lab.measure("node-0")
            process.terminate()
            assert process.wait(PATIENCE_S) == ExitCode.OK
        after = devices(lab, "node-0")
    assert found.up_bit_s == pytest.approx(2e6, rel=0.15)
    assert found.rtt_s == pytest.approx(0.04, rel=0.15)
    assert after == before
