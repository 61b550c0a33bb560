"""The kernels' tests once more, compiled for processors with fewer instructions than this one may
have.

What a compiler makes of one text differs between processors, and so do torch's own loops, above all
where floats are no numbers. This machine's own processor is what the tests run on anyway.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
FILES = (
    "test_extremes.py",
    "test_equal_bits.py",
    "test_cpu_kernels.py",
    "kernels",
    "local_steps/test_aggregate.py",
)
ELSEWHERE = "not compiler and not machine_code"
"""Leaves out what starts processes of its own, and is the same for every target."""

TARGETS = {
    "generic": {"NUMBA_CPU_NAME": "generic", "ATEN_CPU_CAPABILITY": "default"},
    "avx2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
}
"""By name, the environment that has numba and torch work for a target."""


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_pass_their_tests_compiled_for_other_processors(
    target: str, pytestconfig: pytest.Config
) -> None:
    pytest.importorskip("numba")
    from llvmlite import binding

    if target == "avx2" and not binding.get_host_cpu_features().get("avx2"):
        pytest.skip("this processor has no AVX2")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "NUMBA_CPU"))
    }
    environment |= TARGETS[target] | {
        "NUMBA_CACHE_DIR": str(pytestconfig.cache.mkdir(f"numba_{target}"))
    }
    files = [str(TESTS / name) for name in FILES]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        ELSEWHERE,
        *files,
    ]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=pytestconfig.rootpath
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert "passed" in run.stdout
    assert "skipped" not in run.stdout
