import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks import optimizer


def test_the_benchmark_tells_the_ratio_of_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [torch.nn.Parameter(torch.randn(3)) for _ in range(4)]
    monkeypatch.setattr(optimizer, "MODELS", {"small": lambda: small})
    monkeypatch.setattr(optimizer, "SQUARES", (8,))
    out = tmp_path / "out.json"
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["optimizer", "--json", str(out), "--repeats", "2"])
    optimizer.main()
    torch.set_num_threads(threads)
    found = json.loads(out.read_text())
    (row,) = found["steps"]
    assert row["model"] == "small"
    assert row["ratio_to_adamw"] > 0
    assert row["median_s"].keys() == row["least_s"].keys() == {"DeMo", "AdamW"}
    (muon,) = found["muon"]
    assert muon["ratio_to_torch"] > 0
    assert muon["median_s"].keys() == {"node", "torch"}
