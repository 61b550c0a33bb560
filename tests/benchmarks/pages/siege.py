"""The computed part of docs/results/siege.md."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tests.benchmarks.pages.attack import filled
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import document
from tests.processes.siege.catalogue import ALL, Attack, of_a_home, of_loopback

data = cache(partial(document, "siege.json"))
"""The kept measurement."""

daemons = cache(partial(document, "siege-libp2p.json"))
"""That at libp2p's daemons."""


def attacks(source: Callable[[], Any] = data) -> str:
    """What each attack cost."""
    rows = [
        (
            (attack := ALL[each["attack"]]).words,
            f"{attack.connections:,}",
            _networks(attack),
            f"{each['did']['came']:,}",
            f"{each['kept']:.2f}",
            f"{max(each['memory_bytes'].values()) / 1e6:.0f}",
            f"{each['back_s']:.0f}",
            f"{each['newcomer_s']:.1f}",
            str(each["sessions_lost"] + len(each["faults"])),
        )
        for each in source()["attacks"]
    ]
    head = ("what each connection does", "at each port", "from", "in all")
    return table((*head, "commits", "MB", "back s", "newcomer s", "lost"), rows, left=1)


def worst(source: Callable[[], Any] = data) -> str:
    """The worst of all."""
    rows, seconds = source()["attacks"], source()["seconds"]
    kept, slow = min(each["kept"] for each in rows), max(each["newcomer_s"] for each in rows)
    most = max(max(each["memory_bytes"].values()) for each in rows)
    quiet, loads = [each["quiet_rate"] for each in rows], source()["load_averages"]
    return filled(
        f"{len(rows)} attacks of {seconds['attack_s']:g} s or more on {source()['cores']} cores, "
        f"on which other work ran (load {min(loads):g} to {max(loads):g}). Quiet rates "
        f"{min(quiet):.2f} to {max(quiet):.2f} commits a second. The worst: {kept:.2f} of the "
        f"commits, {most / 1e6:.0f} MB more in a process, a newcomer let in after {slow:.1f} s of "
        f"{sum(each['newcomers'] for each in rows)} that came meanwhile, "
        f"{max(each['log_bytes'] for each in rows) / 1e3:.0f} kB of logs."
    )


def _networks(attack: Attack) -> str:
    if attack.source is of_loopback:
        return f"{attack.networks:,} IPv4" if attack.networks > 1 else "1 host"
    return "1 home's /48" if attack.source is of_a_home else f"{attack.networks:,} IPv6 /48"
