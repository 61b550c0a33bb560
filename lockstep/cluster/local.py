"""A cluster on this machine: real processes of the `lockstep` command, started in order, watched
and stopped.

    coordinator, once it serves -> tokens, where it admits by token
        -> the relay, if there is one, once it relays -> nodes
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.cluster.child import Child, Where, here
from lockstep.cluster.names import COORDINATOR, RELAY, node_name
from lockstep.exit_codes import error_of
from lockstep.service.tokens import made_up, new_token
from node.transports.kinds import parse_kinds
from protocol.errors import UnavailableError

START_S = 180.0
"""Longest start of a coordinator or a relay. The first opens its ports within a second, the second
within a few (libp2p needs most of them); on a busy machine both take far longer."""

STOP_S = 20.0
"""Time from asking a process to leave to killing it: a round is finished in less."""

THREADS = "1"
"""CPU threads of each process: all processes share the machine's cores."""

_ANY_ADMIN_PORT = ("--admin", "127.0.0.1:0")

MICRO_BATCH = "8"
"""Samples in a pass of each node: none of them measures it, all have the same model and cores."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One coordinator and its nodes on this machine."""

    directory: Path
    """Holds a directory for each process."""

    run_file: Path
    """Run file of the coordinator."""

    data: Path
    """Prepared corpus that all nodes read."""

    nodes: int
    """Number of node processes."""

    links: tuple[str, ...] = ("grpc",)
    """Transports for the nodes in turn, each as `lockstep join --links` takes them."""

    relay: bool = False
    """Whether there is a relay; it has every transport that a node has."""

    by_token: bool = False
    """Whether the run admits by token. The nodes have one that vouches for them, the relay one that
    does not: only nodes are counted when members vote."""


class Cluster:
    """One coordinator and its nodes; a context manager, so that nothing outlives it."""

    def __init__(self, settings: ClusterSettings, where: Where = here) -> None:
        self.coordinator = _child(COORDINATOR, settings, {}, where)
        kinds = dict.fromkeys(kind for links in settings.links for kind in parse_kinds(links))
        self.relays = (
            [_child(RELAY, settings, {"--links": ",".join(kinds)}, where)] if settings.relay else []
        )
        """At most one."""
        self.nodes = [_node(settings, number, where) for number in range(settings.nodes)]
        self.address = ""
        self._run_file = settings.run_file
        self._by_token = settings.by_token

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def children(self) -> list[Child]:
        """Every process, in the order of their starts."""
        return [self.coordinator, *self.relays, *self.nodes]

    def start(self) -> None:
        """Starts the coordinator, then the relay, then the nodes, each once the one before is
        ready.
        """
        self.coordinator.start(*self._arguments(self.coordinator))
        self.address = self.wait_for_coordinator()
        if self._by_token:
            self._give_token(self.relays, RELAY)
            self._give_token(self.nodes, "nodes", vouches=True)
        for relay in self.relays:
            relay.start(*self._arguments(relay))
            self._wait_for(relay, lambda: self._coordinator_status().get("relays"))
        for node in self.nodes:
            node.start(*self._arguments(node))

    def listens(self, name: str) -> str:
        """HOST:PORT on which the coordinator or the relay listens."""
        return "127.0.0.1:0"

    def wait_for_coordinator(self) -> str:
        """Address of the coordinator once it serves; raises the cause of death, with the last log
        line.
        """
        return str(
            self._wait_for(
                self.coordinator, lambda: (self.coordinator.note() or {}).get("coordinator")
            )
        )

    @property
    def finished(self) -> bool:
        """The run is over: the coordinator has ended with exit code 0."""
        return self.coordinator.exit_status == 0

    def watch(self) -> list[str]:
        """Refreshes every status and restarts dead processes; returns these events in words."""
        happened = []
        for child in self.children:
            if child.died and not self.finished:
                happened.append(f"{child.obituary()}; starting it again")
                child.restart(*self._arguments(child))
        for child in self.children:
            child.refresh()
        return happened

    def wait(self) -> None:
        """Gives the nodes of a finished run `STOP_S` to save and leave, then takes the last
        statuses.
        """
        deadline_s = time.monotonic() + STOP_S
        for node in self.nodes:
            node.wait(deadline_s)
        for child in self.children:
            child.refresh()

    def stop(self, patience_s: float = STOP_S) -> None:
        """Asks every process to leave, nodes first, and kills those that stay longer than
        `patience_s`.
        """
        deadline_s = time.monotonic() + patience_s
        try:
            for children in (self.nodes, self.relays, [self.coordinator]):
                for child in children:
                    child.ask_to_leave()
                for child in children:
                    child.wait(deadline_s)
        finally:  # a second Ctrl-C comes here: no more waiting
            for child in reversed(self.children):
                child.wait(time.monotonic())

    def _arguments(self, child: Child) -> tuple[str, ...]:
        """Arguments of a start besides the process's own options."""
        if child is self.coordinator:  # a restarted one must be where nodes look for it
            listen = self.address or self.listens(child.name)
            admit = ("--admit", "token") if self._by_token else ()
            # The nodes try the model.
            return str(self._run_file), "--no-try-model", "--listen", listen, *admit
        return (
            (self.address, "--listen", self.listens(child.name))
            if child in self.relays
            else (self.address,)
        )

    def _give_token(self, children: Sequence[Child], kind: str, *, vouches: bool = False) -> None:
        """Lets these processes in by a token in their environment, which no other user can read."""
        if not children:
            return
        place, uses = self.coordinator.directory, len(children)

        def secret() -> str:
            with contextlib.suppress(UnavailableError):  # it takes orders a moment after it serves
                return new_token(place, made_up(kind), uses=uses, vouches=vouches)[0]
            return ""

        token = str(self._wait_for(self.coordinator, secret))
        for child in children:
            child.environment["LOCKSTEP_TOKEN"] = token

    def _coordinator_status(self) -> Mapping[str, Any]:
        self.coordinator.refresh()
        return self.coordinator.status

    def _wait_for(self, child: Child, found: Callable[[], object]) -> object:
        """The first true value of `found()`; raises the cause of the child's death, with its last
        log line.
        """
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if something := found():
                return something
            if child.exit_status is not None:
                break
            time.sleep(0.05)
        kind = error_of(child.exit_status or 0)
        raise kind(f"the {child.name} did not start: {child.last_words()}")


def _node(settings: ClusterSettings, number: int, where: Where) -> Child:
    options = {
        "--data": str(settings.data),
        "--name": node_name(number),
        "--device": "cpu",
        "--threads": THREADS,
        "--micro-batch": MICRO_BATCH,
        "--links": settings.links[number % len(settings.links)],
        "--nice": "0",  # all processes of the cluster are equals
    }
    node = _child(node_name(number), settings, options, where, command="join")
    node.arguments += ("--on-battery",)
    return node


def _child(
    name: str,
    settings: ClusterSettings,
    options: Mapping[str, str],
    where: Where,
    *,
    command: str = "",
) -> Child:
    """A process with a directory of its own; `command` is its name unless given."""
    directory = settings.directory / name
    flags = [
        word for option in {"--directory": str(directory), **options}.items() for word in option
    ]
    return Child(
        name, directory, [command or name, *flags, *_ANY_ADMIN_PORT], _environment(), where
    )


def _environment() -> dict[str, str]:
    """This process's environment without its LOCKSTEP_* settings: they are not meant for every
    process of the cluster.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), THREADS)
    return {**kept, **pools, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
