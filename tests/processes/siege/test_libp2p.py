"""Strangers at the port of libp2p's daemon, before which no gate stands: for a moment at one that
an honest peer uses, and for longer at those of a run whose nodes link over libp2p.
"""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Accept, Pipe
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
from protocol.errors import UnavailableError
from tests.node.transports.libp2p.p2pd import daemon_pid, needs_p2pd
from tests.processes.siege.catalogue import AT_THE_DAEMON
from tests.processes.siege.run import Daemon, LinkedRun, Newcomers, Sizes
from tests.processes.siege.trial import BACK_S, NEWCOMER_S, PACE_KEPT, Lengths, Siege, attackers
from tests.processes.strangers.run import USUAL_DESCRIPTORS, Watch
from tests.support.waiting import until

pytestmark = needs_p2pd

MEMORY_BYTES = 64_000_000
"""Growth of a daemon under one attack, at most."""

MOMENT_S = 6.0
CROWD = 150
"""Descriptors of a daemon that strangers crowd; those of one address have 192 at most."""

PROOF_S = 10.0
"""Time in which a link proves a key, as in `node.links`."""


async def proving(pipe: Pipe) -> None:
    """Admits who says something, and echoes."""
    try:
        async with asyncio.timeout(PROOF_S):
            data = await pipe.read()
        pipe.admit()
        while data:
            await pipe.write(data)
            data = await pipe.read()
    except (UnavailableError, TimeoutError):
        pass


@asynccontextmanager
async def transport(accept: Accept = proving) -> AsyncIterator[tuple[Libp2pTransport, str]]:
    """A transport, and its address."""
    made = Libp2pTransport(Ed25519PrivateKey.generate(), Libp2pSettings("127.0.0.1:0", public=True))
    try:
        yield made, (await made.start(accept))[0]
    finally:
        await made.stop()


async def echoed(pipe: Pipe) -> None:
    await pipe.write(b"x")
    assert await pipe.read() == b"x"


async def linked(newcomer: Libp2pTransport, address: str) -> None:
    """A link of a newcomer, which tries again as nodes do."""
    async with asyncio.timeout(NEWCOMER_S):
        while True:
            try:
                return await echoed(await newcomer.dial(address))
            except UnavailableError:
                await asyncio.sleep(0.1)


async def test_connections_that_say_nothing_keep_no_peer_from_a_daemon() -> None:
    async with transport() as (besieged, address), transport() as (member, _):
        pipe = await member.dial(address)
        await echoed(pipe)
        child = Daemon("daemon", pid := daemon_pid(besieged.directory))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (USUAL_DESCRIPTORS, USUAL_DESCRIPTORS))
        with Sizes([child]) as sizes, attackers("libp2p-idle-1100") as attack:
            attack.wait()
            before = sizes.begin()
            attack.begin({"daemon": address.split("/")[4]}, MOMENT_S)
            did = asyncio.create_task(asyncio.to_thread(attack.did, MOMENT_S))
            await until(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= CROWD)
            async with transport() as (newcomer, _):
                await linked(newcomer, address)
                await echoed(pipe)
            assert not did.done(), "the newcomer was let in when the attack was over"
            assert (await did)["played"]
            growth = sizes.most["daemon"] - before["daemon"]
        await echoed(pipe)
        assert growth <= MEMORY_BYTES
        assert (daemon_pid(besieged.directory), besieged.restarts) == (pid, 0)


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Siege, LinkedRun]]:
    """A run at work whose nodes link over libp2p."""
    with (
        LinkedRun(Path(tmp_path_factory.mktemp("linked"))) as run,
        Watch(run) as watch,
        Newcomers(run.cluster.coordinator, run.cluster.address) as newcomers,
        Sizes(run.processes()) as sizes,
    ):
        yield Siege(run, watch, newcomers, sizes), run


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_THE_DAEMON)
def test_strangers_at_the_daemons_of_a_run_cost_it_next_to_nothing(
    name: str, siege: tuple[Siege, LinkedRun]
) -> None:
    siege_, run = siege
    daemons = run.daemons()
    outcome = siege_.play(name, Lengths())
    assert outcome.did["played"]
    assert outcome.faults == ()
    assert outcome.sessions_lost == 0
    assert outcome.kept >= PACE_KEPT, outcome
    assert max(outcome.memory.values()) <= MEMORY_BYTES, outcome
    assert outcome.back_s < BACK_S, outcome
    assert outcome.newcomer_s <= NEWCOMER_S, outcome
    assert run.daemons() == daemons
    assert run.carriers() == {"libp2p"}
