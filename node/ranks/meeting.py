"""Rank 0 meets the other ranks: it hears all of them, refuses unlike ones, and has a crew."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from node.ranks.crew import Crew
from node.ranks.line import START_S, RankLine, RankPatience
from node.ranks.orders import Hello, Welcome, decode_hello, encode
from protocol.errors import (
    DeviceError,
    LockstepError,
    SettingsError,
    UnavailableError,
    VersionError,
    first_line,
)


def meet(
    line: RankLine,
    device: torch.device,
    own: Hello,
    patience: RankPatience,
    ended: Callable[[], Mapping[int, str]] = dict,
) -> Crew:
    """The crew of all ranks; `ended` tells the ranks whose processes are known to have ended.

    Raises `UnavailableError` for a rank that does not come, `DeviceError` for one that ended, and
    what `refusal` returns.
    """
    hellos = [own, *(_hello(line, rank, ended) for rank in range(1, line.place.count))]
    if error := refusal(hellos):
        line.say("welcome", encode(Welcome(refused=str(error))))
        line.close()
        raise error
    backend = "nccl" if own.kind == "cuda" else "gloo"
    line.say("welcome", encode(Welcome("", backend, patience.order_s, patience.silence_s)))
    try:
        line.join_group(backend, patience.order_s)
    except RuntimeError as failure:
        words = first_line(failure)[:300]
        raise DeviceError(f"the ranks of this node do not reach each other: {words}") from failure
    return Crew(line, device, hellos, patience, ended)


def refusal(hellos: Sequence[Hello]) -> LockstepError | None:
    """Why these ranks, rank 0 first, cannot be one node; None where they can. Pure."""
    own = hellos[0]
    for rank, other in enumerate(hellos):
        name = f"rank {rank} (on {other.host})"
        if other.release != own.release:
            return VersionError(
                f"{name} runs {other.release}, rank 0 {own.release}: install one release of both "
                "on all machines of a node"
            )
        if other.error:
            return SettingsError(f"{name}: {other.error}")
        for setting, value in own.settings.items():
            if (found := other.settings.get(setting)) != value:
                return SettingsError(
                    f"{setting}: expected {value!r} on all ranks, as on rank 0, found {found!r} on "
                    f"{name}; start all with the same command"
                )
        if other.kind != own.kind:
            card, none = (name, "rank 0") if own.kind == "cpu" else ("rank 0", name)
            return SettingsError(
                f"device: {card} has a graphics card and {none} has none; give every rank one, or "
                "start all with --device cpu"
            )
    return None


def _hello(line: RankLine, rank: int, ended: Callable[[], Mapping[int, str]]) -> Hello:
    until_s = time.monotonic() + START_S
    while (found := line.hear(f"hello/{rank}")) is None:
        if how := ended().get(rank):
            raise DeviceError(f"rank {rank} {how} before it began")
        if time.monotonic() > until_s:
            raise UnavailableError(
                f"rank {rank} did not come within {START_S:.0f} s: start all "
                f"{line.place.count} ranks of the node, and see what keeps it"
            )
    return decode_hello(found[0])
