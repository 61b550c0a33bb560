"""What a run takes is said, and refused where it is too much, before anything is obeyed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.volunteer.needs import judged, peak_text, require_within, sized
from node.rehearsal import Rehearsal
from protocol.errors import SettingsError
from protocol.planner.needs import needs_of
from protocol.runfile import RunSpec

HUGE = RunSpec.model_validate(
    {"model": {"config": {"vocab_size": 15_000_000, "hidden_size": 96, "num_hidden_layers": 2}}}
)
OTHER = RunSpec.model_validate(
    {"model": {"type": "opt", "config": {"hidden_size": 64, "num_attention_heads": 4}}}
)


def test_the_needs_are_said_in_one_line(tmp_path: Path) -> None:
    (line,) = judged(RunSpec(), 0, 0, tmp_path / "not" / "there")
    assert line.startswith("this run takes 560 MB of memory on a CPU (540 MB for Python and torch)")
    assert "; at most 4.3" in line


def test_a_run_that_needs_more_than_the_owner_gives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--memory: .* takes .* GB: expected at least"):
        judged(HUGE, 4_000_000_000, 0, tmp_path)
    with pytest.raises(SettingsError, match=r"560 MB: expected at least 5\d\d,.* got 100,000,000"):
        judged(RunSpec(), 100_000_000, 0, tmp_path)
    with pytest.raises(SettingsError, match=r"may take .* of disk.*--disk"):
        judged(RunSpec(), 0, 4_000_000_000, tmp_path)
    assert judged(RunSpec(), 1_000_000_000, 10_000_000_000, tmp_path)


def test_a_limit_below_what_the_measured_passes_take_is_refused() -> None:
    spec, found = RunSpec(), Rehearsal(2, 2, 0.1, 0.2, "", pass_bytes=200_000_000)
    needs = needs_of(spec, sized(spec))
    peak_bytes = needs.fixed_bytes + needs.held_bytes + 200_000_000
    require_within(spec, found, peak_bytes)
    require_within(spec, found, 0)
    with pytest.raises(SettingsError, match=rf"2 samples takes .*{peak_bytes:,} bytes, got"):
        require_within(spec, found, peak_bytes - 1)
    require_within(spec, replace(found, device="cuda"), 1)
    assert peak_text(spec, sized(spec), found) == "up to 752 MB with such passes"
    again = replace(found, recomputes=True)
    assert peak_text(spec, sized(spec), again) == "up to 832 MB with such passes", "the compiler"
    light = replace(found, is_light=True)
    assert peak_text(spec, sized(spec), light) == "up to 750 MB with such passes"
    on_gpu = replace(light, device="cuda")
    assert "210 MB of the GPU" in peak_text(spec, sized(spec), on_gpu)
    apart = peak_text(spec, sized(spec), replace(on_gpu, is_apart=True))
    assert "205 MB of the GPU" in apart
    assert "of the host 545 MB" in apart


def test_a_type_that_is_not_written_down_is_counted_without_memory(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--memory"):
        judged(OTHER, 1_000_000, 0, tmp_path)
    assert judged(OTHER, 0, 0, tmp_path) == [], "the node counts it before it builds the model"


def test_a_run_is_judged_without_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from lockstep.volunteer.needs import judged; "
        "from protocol.runfile import RunSpec; judged(RunSpec(), 0, 0, Path('.')); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
