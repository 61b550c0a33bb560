"""`lockstep coordinator RUN.toml`: one coordinator process, from a run file to the end of the
run.
"""

import asyncio
import socket
from ipaddress import ip_address
from pathlib import Path

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.journal_check import check_journal
from coordinator.machine.rounds import Rounds
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from lockstep.console import messages, own_command
from lockstep.run_file import read_run_file
from lockstep.service.directory import Owner, claimed
from lockstep.service.keys import KEY_NAME, load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.control.addresses import address_towards
from protocol.addresses import split_address
from protocol.errors import StorageError, UnavailableError
from protocol.handshake import public_bytes
from protocol.runfile import RunSpec, parse_run_json, run_id

FAR_ADDRESS = "192.0.2.1:9"
"""An address of the documentation's network: the way to it leaves this machine. Nothing is sent."""


def coordinate(run_file: Path, settings: CoordinatorSettings, options: ServeOptions) -> None:
    """Runs the coordinator until its run is finished or a signal ends it."""
    spec = read_run_file(run_file)
    log_versions((settings, spec))
    with claimed(settings.directory, Owner("coordinator", run=spec.name)):
        messages.print(run_event_loop(_coordinate(spec, settings, options)))


def check_directory(directory: Path) -> None:
    """Verifies the journal of a stopped coordinator; `StorageError` says where it is damaged."""
    path = directory / JOURNAL_NAME
    if not path.exists() or not (directory / KEY_NAME).exists():
        raise StorageError(
            f"{directory}: expected a coordinator's directory with {JOURNAL_NAME} and {KEY_NAME}"
        )
    key = public_bytes(load_or_create_key(directory))
    journal = Journal(path)
    try:
        spec = parse_run_json(journal.run_json(), str(path))
        with messages.status("replaying the journal"):
            found = check_journal(journal, Rounds(spec, run_id(spec, key)), key)
    finally:
        journal.close()
    messages.print(
        f"{directory}: sound: {found.events} events, {found.commits} commits "
        f"up to round {found.head_round}, {found.snapshots} snapshots",
        soft_wrap=True,
    )


def invitation(address: str) -> str:
    """The line to give to volunteers, or why nobody elsewhere can join."""
    host, port = split_address(address)
    if host == "localhost" or (is_address(host) and ip_address(host).is_loopback):
        return (
            f"only this machine can reach this run, with: {own_command()} join {address}; start it "
            f"with --listen 0.0.0.0:{port} for others"
        )
    if is_address(host) and ip_address(host).is_unspecified:
        host = own_address()
        return (
            f"volunteers join with: lockstep join {host}:{port} (or this machine's public name or "
            "address in place of its own)"
        )
    return f"volunteers join with: lockstep join {address}"


def own_address() -> str:
    """The address of this machine on the way to others, or its name where no way leads out."""
    try:
        return address_towards(FAR_ADDRESS).rpartition(":")[0]
    except UnavailableError:
        return socket.gethostname()


def is_address(host: str) -> bool:
    """Whether a host is an IP address and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _coordinate(spec: RunSpec, settings: CoordinatorSettings, options: ServeOptions) -> str:
    """Returns how it ended, in words."""
    meter = OverheadMeter()
    process = CoordinatorProcess(
        spec, settings, load_or_create_key(settings.directory), meter.measure_overhead
    )
    asked = asyncio.Event()

    async def work() -> str:
        messages.print(invitation(process.address), soft_wrap=True, markup=False)
        ends = [asyncio.ensure_future(process.finished()), asyncio.ensure_future(asked.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if ends[0].done():
                ends[0].result()  # an error in the process is raised here
                return f"run {process.run_id} ({spec.name}) is finished"
            return f"stopped; the same command with --directory {settings.directory} continues here"
        finally:
            for end in ends:
                end.cancel()

    return await serve(process, work, asked.set, lambda: process.address, options, meter=meter)
