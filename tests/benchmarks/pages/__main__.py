"""Pages and figures of docs/results/ from their data: `python -m tests.benchmarks.pages [--check]`.

Everything between `<!-- begin: NAME -->` and `<!-- end -->` in a page is computed, as are the SVG
figures and the CSV of the runs over home links. `--check` changes nothing and ends with 1 if a page
is stale. It leaves figures out: their bytes depend on the version of matplotlib.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.headline.study import HEADLINE, SHORTER
from tests.benchmarks.pages import (
    attack,
    headline,
    local_steps,
    parity,
    passes,
    short_memory,
    siege,
    strangers,
    sums,
    tables,
    wan,
)
from tests.benchmarks.pages.blocks import Blocks, rendered
from tests.benchmarks.parity.sweeps import SWEEPS

RESULTS = Path("docs/results")

PAGES: dict[str, Blocks] = {
    "parity.md": {"deciding": parity.deciding, "delays": parity.delays, "volumes": parity.volumes},
    "headline.md": {
        "results": partial(headline.results, HEADLINE),
        "differences": partial(headline.differences, HEADLINE),
        "curves": headline.curves,
    },
    "local-steps.md": {
        "expected": local_steps.expected,
        "speeds": local_steps.speeds,
        "overlap": local_steps.overlap,
        "horizons": local_steps.horizons,
        "rates": local_steps.rates,
    },
    "short-memory.md": {
        "expected": short_memory.expected,
        "test": short_memory.test_split,
    },
    "attack.md": {
        "quarter": attack.quarter,
        "others": attack.others,
        "beside": attack.beside,
    },
    "siege.md": {"attacks": siege.attacks, "worst": siege.worst},
    "notes/siege-libp2p.md": {
        "daemons": partial(siege.attacks, siege.daemons),
        "daemons-worst": partial(siege.worst, siege.daemons),
    },
    "notes/attack-search.md": {"searched": attack.searched},
    "strangers.md": {"attacks": strangers.attacks, "worst": strangers.worst},
    "sums.md": {"homes": sums.homes},
    "wan.md": {"results": wan.results},
    "gossip.md": {
        "simulated": partial(tables.gossip_simulated, "1 MB", keep=tables.on_page),
        "shaped": partial(tables.gossip_shaped, "gossip-shaped.json"),
        "shaped-idle": partial(
            tables.gossip_shaped, "gossip-shaped-idle.json", "gossip-shaped-idle-8.json"
        ),
    },
    "engine.md": {"ratios": tables.engine_ratios, "times": tables.engine_times},
    "pass.md": {"memory": passes.memory, "ways": passes.ways},
    "links.md": {"links": tables.links},
    "scale.md": {"scale": tables.scale, "scale-sums": tables.scale_with_sums},
    "chaos.md": {"chaos": tables.chaos, "busy": tables.chaos_busy},
    "notes/short-memory-more.md": {
        "validation": short_memory.validation_split,
        "means": short_memory.means,
    },
    "notes/step-length.md": {"lengths": tables.step_lengths},
    "notes/local-steps-first.md": {"expected-later": partial(local_steps.expected, later=True)},
    "notes/headline-rates.md": {"rates": headline.rates, "looks": headline.looks},
    "notes/headline-short.md": {
        "results": partial(headline.results, SHORTER),
        "differences": partial(headline.differences, SHORTER),
    },
    "notes/parity-tries.md": {
        sweep: partial(parity.tables, sweep) for sweep in SWEEPS if not sweep.startswith("local")
    },
    "notes/gossip-tries.md": {
        "simulated-1mb": partial(tables.gossip_simulated, "1 MB"),
        "simulated-30kb": partial(tables.gossip_simulated, "30 kB"),
    },
}
"""The computed blocks of each page."""

FILES: dict[str, Callable[[], bytes]] = {
    "data/wan.csv": wan.measurements,
    "figures/parity-curves.svg": parity.curves,
    "figures/parity-changes.svg": parity.changes,
    **{f"figures/wan-{name}.svg": partial(wan.figure, name) for name in wan.FIGURES},
}
"""Files that are computed as a whole."""


def stale(directory: Path = RESULTS) -> list[str]:
    """Pages that do not say what the data say."""
    return [name for name in PAGES if _page(directory, name) != (directory / name).read_text()]


def render(directory: Path = RESULTS) -> None:
    """Write every page, figure and table anew."""
    for name in PAGES:
        text = _page(directory, name)
        (directory / name).write_text(text)
    for name, content in FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content())


def _page(directory: Path, name: str) -> str:
    return rendered((directory / name).read_text(), PAGES[name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Renders or checks."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.pages", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    if not parser.parse_args(arguments).check:
        render()
        return 0
    names = stale()
    for name in names:
        print(f"{RESULTS / name} is stale: run python -m tests.benchmarks.pages", file=sys.stderr)
    return int(bool(names))


if __name__ == "__main__":
    raise SystemExit(main())
