"""A round is measured before a node joins: the size of a pass is found, or taken as given."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from node import rehearsal
from node.model import blocks
from node.model.build import build_model
from node.model.pass_size import Room, Trial
from node.model.training import TrainingModel
from node.rehearsal import rehearse
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from node.settings import NodeSettings
from protocol.errors import SettingsError
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import AlgorithmSpec, RunSpec
from tests.node.model.small import LLAMA
from tests.support.tiny import DEMO, LOCAL_STEPS, tiny_spec

VOTES = tiny_spec(overlap=0, algorithm=DEMO)


def info(spec: RunSpec | None = None) -> RunInfo:
    return RunInfo(spec or tiny_spec(), RunId("a" * 32), b"")


def settings(place: Path, device: str = "cpu") -> NodeSettings:
    return NodeSettings("h:1", place, device=device, threads=1, micro_batch=3)


def full_above(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """A device whose memory holds passes of at most this many samples."""
    honest = TrainingModel.gradient

    def gradient(self: TrainingModel, piece: Tensor) -> float:
        if len(piece) > samples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        return honest(self, piece)

    monkeypatch.setattr(TrainingModel, "gradient", gradient)


def test_a_given_size_is_measured_as_it_is_on_every_device(tmp_path: Path) -> None:
    found = rehearse(
        settings(tmp_path, "cpu,cpu"), info(tiny_spec(overlap=0, algorithm=DEMO)), finds=False
    )
    assert (found.micro_batch, found.samples, found.reason) == (3, 6, "")
    assert 0 < found.pass_s <= found.round_s
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize(("local_samples", "samples"), [(2, 2), (3, 3), (8, 3)])
def test_a_pass_of_a_local_step_ends_with_its_batch(
    tmp_path: Path, local_samples: int, samples: int
) -> None:
    spec = tiny_spec(algorithm=AlgorithmSpec(top_k=16, local_samples=local_samples))
    assert rehearse(settings(tmp_path), info(spec), finds=False).samples == samples


def test_the_memory_of_passes_is_what_a_replica_leaves_that_has_made_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With local steps it has residual, moments and, with overlap, a copy of the round's start."""
    made: list[Replica] = []
    moments: list[dict[str, torch.Tensor]] = []

    def built(*parts: Any) -> Replica:
        made.append(replica_for(*parts))
        return made[-1]

    def room_bytes(*_: object) -> None:
        (replica,) = made
        assert isinstance(replica, LocalStepsReplica)
        assert replica._start is not replica.committed
        assert replica.engine.entries.any()
        moments.extend(replica._optimizer._state.values())

    monkeypatch.setattr(rehearsal, "replica_for", built)
    monkeypatch.setattr(rehearsal, "_room_bytes", room_bytes)
    rehearse(settings(tmp_path), info(), finds=True)
    first = {"momentum_buffer", "exp_avg"}
    kept = sum(each[name].numel() for each in moments for name in first & each.keys())
    assert kept == sum(each.numel() for each in made[0].trainee.parameters.values())


def test_the_size_that_is_found_fits_the_devices_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_above(monkeypatch, 1)
    found = rehearse(settings(tmp_path), info(), finds=True)
    reason = "2 do not fit the memory of cpu; computing activations again is no quicker"
    assert (found.micro_batch, found.reason) == (1, reason)


def test_where_not_one_sample_fits_the_run_cannot_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_above(monkeypatch, 0)
    with pytest.raises(SettingsError, match="one sample does not fit"):
        rehearse(settings(tmp_path), info(), finds=True)


def test_the_rooms_bounds_are_those_of_run_machine_and_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Room] = []

    def found(_: TrainingModel, __: RunInfo, room: Room) -> str:
        seen.append(room)
        return "seen"

    monkeypatch.setattr(rehearsal, "_found", found)
    monkeypatch.setattr(rehearsal, "free_memory_bytes", lambda _: 10**9)
    monkeypatch.setattr(rehearsal, "resident_bytes", lambda _: 5 * 10**8)
    rounds, half = tiny_spec().rounds, replace(settings(tmp_path, "cpu,cpu"), duty_cycle=50)
    for allowed in (0, 2 * 10**9, 10**9, 1):
        assert rehearse(half, info(), allowed, finds=True).samples == 2
    assert rehearse(half, info(VOTES), finds=True).samples == 2
    step, whole = LOCAL_STEPS.local_samples // 2, rounds.batch_samples_max // 2
    assert [room.samples_max for room in seen] == [step] * 4 + [whole]
    assert {room.pass_s_max for room in seen} == {rounds.compute_ms / 1000 / 2 / 4}
    a_half = [4 * 10**8, 4 * 10**8, 2 * 10**8, 0]
    assert [room.memory_bytes for room in seen[:4]] == a_half, "ranks on CPUs share it"


Machine = Callable[[int, bool], tuple[float, int]]
"""Seconds and bytes of a pass, by its samples and by whether blocks are computed again."""


def chosen(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, memory_bytes: int
) -> tuple[int, bool, str]:
    """(Samples, whether blocks are computed again, the reason) of a machine with this memory."""
    trainee = TrainingModel(build_model("llama", LLAMA))

    def tried(trainee: TrainingModel, _: RunInfo, samples: int) -> Trial:
        pass_s, taken_bytes = machine(samples, trainee.recomputes)
        return Trial(samples, pass_s, taken_bytes, trainee.recomputes)

    monkeypatch.setattr(rehearsal, "_tried", tried)
    monkeypatch.setattr(rehearsal, "COMPILER_BYTES", 0)
    reason = rehearsal._found(trainee, info(), Room(64, 100.0, memory_bytes))
    assert blocks_recompute(trainee.model) == trainee.recomputes
    return trainee.micro_batch_max, trainee.recomputes, reason


def blocks_recompute(model: nn.Module) -> bool:
    return any(getattr(each, "gradient_checkpointing", False) for each in model.modules())


def wide(samples: int, recomputes: bool) -> tuple[float, int]:
    """A device that computes eight samples as quickly as one."""
    return (1 + 0.33 * recomputes) * max(8, samples) / 8, samples * (10 if recomputes else 100)


def narrow(samples: int, recomputes: bool) -> tuple[float, int]:
    """A device that one sample fills."""
    return (1 + 0.33 * recomputes) * samples, samples * (10 if recomputes else 100)


@pytest.mark.parametrize(
    ("machine", "memory_bytes", "samples", "recomputes"),
    [
        (wide, 10_000, 8, False),  # there is room for all
        (wide, 399, 8, True),  # for two samples as they are, in three quarters of a time of eight
        (narrow, 399, 1, False),  # a larger pass is of no use
        (narrow, 99, 1, True),  # not one sample fits
        (narrow, 5, 1, True),  # nothing does: the least is taken, and the owner's limit refuses
    ],
)
def test_blocks_are_computed_again_where_memory_makes_that_quicker_or_nothing_else_fits(
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    memory_bytes: int,
    samples: int,
    *,
    recomputes: bool,
) -> None:
    found = chosen(monkeypatch, machine, memory_bytes)
    assert found[:2] == (samples, recomputes)
    assert ("is no quicker" in found[2]) == (machine is narrow and memory_bytes == 399)


def test_a_model_that_cannot_compute_blocks_again_keeps_to_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "recompute_blocks", lambda *_: False)
    assert chosen(monkeypatch, wide, 399)[:2] == (2, False)


def test_the_size_of_a_pass_changes_no_gradient_of_the_same_samples() -> None:
    """What replicas agree on never sees it: the mean over the samples is the contribution."""
    demo = AlgorithmSpec(name="demo", top_k=16)  # its gradients are float32
    spec = tiny_spec(algorithm=demo, overlap=0)
    torch.manual_seed(0)
    samples = torch.randint(0, 200, (8, 17))
    found = []
    for micro_batch in (1, 4):
        replica = replica_for(spec, RunId("a" * 32), torch.device("cpu"), micro_batch)
        passes = replica.trainee.passes([samples])
        while passes.next():
            pass
        assert passes.finish().samples == 8
        found.append([each.grad for each in replica.trainee.parameters.values()])
    for one, four in zip(*found, strict=True):
        torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-6)
