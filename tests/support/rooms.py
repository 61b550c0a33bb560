"""The rooms of the product that each long test is about, so that a change is met by its own."""

from collections.abc import Iterable
from pathlib import PurePosixPath

ROUND = ("coordinator/", "node/round/", "node/gossip/", "node/control/", "node/trainer.py")
"""A round's way through coordinator and node."""

LINKS = ("node/links/", "node/transports/")

ROOMS: dict[str, tuple[str, ...]] = {
    "tests/benchmarks/accelerator/": ("node/exact/", "node/model/", "node/system/device.py"),
    "tests/benchmarks/attack/": ("lockstep/audit/", "protocol/audit/", "node/exact/"),
    "tests/benchmarks/gossip/": ("node/gossip_adam/", "node/links/", "protocol/mixing/"),
    "tests/benchmarks/parity/": ("node/exact/",),
    "tests/benchmarks/ranks/": ("node/ranks/", "node/model/"),
    "tests/benchmarks/test_chaos.py": ("coordinator/service/", "node/control/", "node/gossip/"),
    "tests/benchmarks/wan/": ("lockstep/wan/", "node/links/", "node/gossip/"),
    "tests/deploy/test_prometheus.py": ("deploy/", "coordinator/metrics.py", "node/status.py"),
    "tests/deploy/test_volunteers_container.py": (
        ".dockerignore",
        "deploy/node.Dockerfile",
        "docs/guide/install.md",
        "pyproject.toml",
    ),
    "tests/lockstep/audit/work/test_ways_of_a_pass.py": ("node/model/", "lockstep/audit/work/"),
    "tests/lockstep/page/test_browser.py": ("lockstep/page/", "coordinator/public_document.py"),
    "tests/lockstep/test_package.py": ("pyproject.toml", "constraints.txt", "lockstep/commands/"),
    "tests/processes/siege/": ("border/", "coordinator/service/", "protocol/channel.py", *LINKS),
    "tests/processes/strangers/": ("border/", "coordinator/service/", "protocol/border/", *LINKS),
    "tests/processes/test_auditor": (
        "lockstep/audit/",
        "node/relay/",
        "coordinator/machine/rules/",
    ),
    "tests/processes/test_descriptors.py": (
        "border/",
        "lockstep/service/descriptors.py",
        "protocol/shortage.py",
        "node/system/files.py",
        "node/transports/",
    ),
    "tests/processes/test_device_failure.py": (
        "lockstep/volunteer/anew.py",
        "node/system/device.py",
        "node/trainer.py",
    ),
    "tests/processes/test_faults.py": (*ROUND, *LINKS, "node/system/files.py"),
    "tests/processes/test_gossip_adam.py": ("node/gossip_adam/", "node/replica/gossip_adam.py"),
    "tests/processes/test_guides.py": ("docs/guide/", "README.md", "lockstep/commands/"),
    "tests/processes/test_heads.py": (
        "coordinator/service/heads.py",
        "coordinator/process.py",
        "node/control/",
        "protocol/codec/commits.py",
        "protocol/codec/heads.py",
    ),
    "tests/processes/test_hole_punching.py": ("node/transports/libp2p/", "node/relay/"),
    "tests/processes/test_local_steps.py": ("node/exact/local_steps/", "node/replica/"),
    "tests/processes/test_nat.py": ("node/transports/", "node/relay/", "node/control/"),
    "tests/processes/test_operator.py": ("coordinator/", "lockstep/commands/run/"),
    "tests/processes/test_poisoned_commit.py": ("coordinator/machine/rules/", "node/round/"),
    "tests/processes/test_ranks.py": ("node/ranks/", "node/model/", "lockstep/volunteer/ranks.py"),
    "tests/processes/test_relay_sums.py": (
        "coordinator/service/adding_relays.py",
        "coordinator/machine/rules/sums/",
        "node/relay/",
        "node/sums/",
    ),
    "tests/processes/test_restart_from_checkpoint.py": ("coordinator/", "lockstep/audit/"),
    "tests/processes/test_s3.py": ("node/data/", "node/own_genesis.py", "node/own_data.py"),
    "tests/processes/test_strangers.py": (
        "border/",
        "coordinator/service/",
        "protocol/border/",
        *LINKS,
    ),
    "tests/processes/test_sums.py": ("coordinator/machine/", "node/sums/", "protocol/sums/"),
    "tests/processes/test_traffic.py": ("node/traffic.py", "coordinator/traffic.py", *LINKS),
    "tests/processes/test_troubleshooting.py": ("docs/guide/troubleshooting.md", "lockstep/"),
    "tests/processes/test_two_machines.py": ("node/ranks/", "docs/guide/cluster.md"),
    "tests/processes/test_unwilling.py": ("node/gossip/", "coordinator/machine/", *LINKS),
    "tests/processes/test_unlike_hardware.py": (*ROUND, "node/model/", "node/rehearsal.py"),
    "tests/processes/test_work_audit.py": ("lockstep/audit/", "protocol/audit/"),
    "tests/processes/test_wrong_sums.py": (
        "coordinator/machine/rules/sums/",
        "lockstep/audit/",
        "protocol/sums/",
    ),
    "tests/simulation/": (*ROUND, "protocol/", "node/replica/position.py"),
}
"""By the beginning of a test file's path, the beginnings of the paths that it is about. A file that
is not named is about the module that it mirrors, and the others of its folder.
"""


def rooms_of(test: str) -> tuple[str, ...]:
    """Beginnings of the paths that a test is about, by its name."""
    file = test.partition("::")[0]
    named = (rooms for start, rooms in ROOMS.items() if file.startswith(start))
    return next(named, (f"{PurePosixPath(file).parent.relative_to('tests')}/",))


def is_touched(test: str, changed: Iterable[str]) -> bool:
    """Tells whether one of the changed files is the test's own, or of its rooms."""
    own = (test.partition("::")[0], *rooms_of(test))
    return any(path.startswith(own) for path in changed)
