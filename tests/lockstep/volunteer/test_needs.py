"""What a run takes is said, and refused where it is too much, before anything is obeyed."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.volunteer.needs import judged
from protocol.errors import SettingsError
from protocol.runfile import RunSpec

HUGE = RunSpec.model_validate(
    {"model": {"config": {"vocab_size": 15_000_000, "hidden_size": 96, "num_hidden_layers": 2}}}
)
OTHER = RunSpec.model_validate(
    {"model": {"type": "opt", "config": {"hidden_size": 64, "num_attention_heads": 4}}}
)


def test_the_needs_are_said_in_one_line(tmp_path: Path) -> None:
    (line,) = judged(RunSpec(), 0, 0, tmp_path / "not" / "there")
    assert line.startswith("this run takes at least ")
    assert " of memory and at most 4.3" in line


def test_a_run_that_needs_more_than_the_owner_gives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"needs at least .* GB of memory.*--memory"):
        judged(HUGE, 4_000_000_000, 0, tmp_path)
    with pytest.raises(SettingsError, match=r"may take .* of disk.*--disk"):
        judged(RunSpec(), 0, 4_000_000_000, tmp_path)
    assert judged(RunSpec(), 1_000_000_000, 10_000_000_000, tmp_path)


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
