"""The engine's benchmark does the work that it times."""

from pathlib import Path

import pytest
import torch

from border.memory import give_back_freed_memory
from node.replica import local_steps
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from protocol.runfile import ModelSpec
from tests.benchmarks.engine.decoding import Work, compared
from tests.benchmarks.engine.footprint import peak_extra_bytes
from tests.benchmarks.engine.memory import RUN, TINY, Meter, by_torch, peaks, spec_of
from tests.benchmarks.engine.steps import PARTS, Ours, Theirs, seconds

CPU = torch.device("cpu")
PARAMETERS = {"a": torch.zeros(130, 64), "b": torch.zeros(70)}
GRADIENTS = {name: torch.randn(tensor.shape) for name, tensor in PARAMETERS.items()}


def test_a_step_of_either_side_moves_its_own_copy_of_the_parameters_and_has_all_parts() -> None:
    sides = Ours(PARAMETERS, payloads=3, top_k=8), Theirs(PARAMETERS, payloads=3, top_k=8)
    for side in sides:
        assert list(side.step(GRADIENTS)) == list(PARTS)
    ours, theirs = sides
    assert ours.coefficients == (3 + 1) * 8  # three chunks of the matrix, one of the line
    for moved in (ours._parameters, theirs._demo._parameters):
        assert all(tensor.count_nonzero() / tensor.numel() > 0.5 for tensor in moved.values())
    assert not any(tensor.any() for tensor in PARAMETERS.values())


def test_a_commit_that_is_timed_has_the_votes_of_all_its_authors() -> None:
    threads = torch.get_num_threads()
    work = Work({name: tuple(tensor.shape) for name, tensor in PARAMETERS.items()}, 3, top_k=8)
    assert work.values == 3 * (3 + 1) * 8
    row = compared(work.decode, 2, repeats=4)
    torch.set_num_threads(threads)
    assert row["pairs"] == 4
    assert (row["ratio"] is None) == (row["quiet"] == 0)
    assert 0 < row["processor_seconds"]["least"] <= row["processor_seconds"]["most"]


def test_a_peak_is_seen_though_it_is_gone_in_the_end() -> None:
    held = []

    def work() -> None:
        held.append(torch.ones(64 * 1024**2, dtype=torch.uint8))
        seconds(lambda: held.append(held[0].clone()), CPU)
        held.clear()

    give_back_freed_memory()  # which an earlier test may have left, and which would be used again
    peak = peak_extra_bytes(work, CPU)
    assert peak is None or 100 * 1024**2 < peak < 200 * 1024**2


@pytest.mark.parametrize("overlap", [0, 1])
def test_the_rounds_whose_memory_is_measured_are_trained_and_applied(
    tmp_path: Path, overlap: int
) -> None:
    meter = Meter()
    replica = peaks(spec_of(TINY, overlap), 2, tmp_path, meter)
    assert replica.payloads_ignored == 0
    assert replica.engine.accumulations == 3
    assert replica.digest != LocalStepsReplica(spec_of(TINY, overlap), RUN, CPU, 1).digest
    parts = ["start", "ahead", "pass", "sum", "send", "apply", "save", "load", "held"]
    assert list(meter.peaks) == parts


def test_the_working_half_of_a_replica_is_six_bytes_a_parameter_by_torchs_own_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a network a third of which is an embedding, as GPT-2's of 124 million parameters."""
    monkeypatch.setattr(local_steps, "weights_dtype", lambda *_: torch.bfloat16)
    sizes = {"vocab_size": 4096, "n_embd": 192, "n_layer": 4, "n_head": 4}
    replica = replica_for(spec_of(ModelSpec(type="gpt2", config=sizes), 0), RUN, CPU, 1)
    assert isinstance(replica, LocalStepsReplica)
    replica.trainee.zero_gradients()
    replica._optimizer.step(0.0)
    counted = by_torch(replica, torch.randint(0, 4096, (1, 17)))
    assert 5.9 < counted["held"] / replica.layout.parameters < 6.1
    assert counted["step"] > 0
    assert counted["pass"] > 0
