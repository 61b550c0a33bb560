import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_torchrun_example_learns_and_its_ranks_agree() -> None:
    example = ROOT / "examples" / "torchrun_demo.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*launch, str(example), "--steps", "30"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses[-1] < losses[0] - 1
    agreements = sorted(line for line in lines if "agrees" in line)
    assert [line.split(":")[0] for line in agreements] == [
        "rank 0 of 2 agrees",
        "rank 1 of 2 agrees",
    ]
    assert len({line.split(":")[1] for line in agreements}) == 1
