"""The network that stands in, what a trial is predicted to take, and what its notes come to."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from coordinator.machine.rules.pacing import samples_per_share
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from node.model.build import build_model, named_parameters_once
from protocol.errors import DataError, SettingsError
from protocol.ids import PeerId
from tests.benchmarks.engine.shapes import llama_20m
from tests.benchmarks.wan import __main__ as wan
from tests.benchmarks.wan.links import Seen, Trial, group_sizes, interpolated, run_spec
from tests.benchmarks.wan.methods import LOCAL_STEPS, METHODS
from tests.benchmarks.wan.model import (
    CONFIGS,
    GradientPool,
    Notes,
    StandIn,
    StepNote,
    read_notes,
    shapes,
)
from tests.benchmarks.wan.results import (
    measured,
    parameters_of,
    predicted,
)

LOCAL = "lockstep-0-grpc-local5-k192"

# ---- the network and its gradients


def test_the_network_is_the_engine_benchmarks_llama() -> None:
    assert sorted(shapes(CONFIGS["20m"]).values()) == sorted(llama_20m().values())
    assert round(parameters_of("20m"), -5) == 20_500_000


def test_the_shapes_are_those_of_the_network_that_the_run_file_builds() -> None:
    config = CONFIGS["tiny"]
    built = named_parameters_once(build_model("llama", config))
    assert sorted(shapes(config).values()) == sorted(
        tuple(parameter.shape) for parameter in built.values()
    )


def test_every_step_has_gradients_of_its_own_and_the_same_ones_again() -> None:
    pool = GradientPool(100, seed=1)
    steps = [torch.zeros(10, 10) for _ in range(3)]
    for gradient, step in zip(steps, (0, 1, 0), strict=True):
        pool.copy([gradient], step)
    assert not torch.equal(steps[0], steps[1])
    assert torch.equal(steps[0], steps[2])
    assert steps[0].count_nonzero() == 100


def test_a_stood_for_backward_leaves_the_pools_numbers_in_every_gradient() -> None:
    sizes = shapes(CONFIGS["tiny"])
    model = StandIn(sizes, compute_s=0.0, seed=3)
    model().backward()
    expected = [torch.empty(shape) for shape in sizes.values()]
    GradientPool(model.numbers, 3).copy(expected, 1)
    assert len(expected) == len(list(model.parameters()))
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient)


def test_notes_on_disk_are_the_steps_and_where_the_last_one_ended(tmp_path: Path) -> None:
    notes = Notes.to(tmp_path / "notes")
    notes.next_step().compute_s = 1.5
    with notes.arithmetic():
        pass
    notes.next_step(sync=True)
    notes.close()
    first, second, end = read_notes(tmp_path / "notes")
    assert (first.compute_s, first.sync, second.sync) == (1.5, False, True)
    assert first.arithmetic_s > 0
    assert first.began_s <= second.began_s <= end.began_s


def test_a_step_that_is_abandoned_only_says_where_the_last_one_ended(tmp_path: Path) -> None:
    notes = Notes.to(tmp_path / "notes")
    whole, unfinished = notes.next_step(), notes.next_step()
    notes.abandon()
    assert read_notes(tmp_path / "notes") == [whole, unfinished]


def test_a_node_that_died_before_its_first_step_has_no_notes(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "none") == []


# ---- predictions


def test_ddp_on_cable_is_predicted_to_send_143_megabytes_in_57_seconds() -> None:
    found = predicted(Trial("cable", "ddp"))
    assert found.bytes == pytest.approx(143e6, rel=0.01)
    assert found.seconds == pytest.approx(57.9, abs=0.1)


def test_lockstep_sends_seven_payloads_and_hides_them_with_overlap() -> None:
    late, hidden = (predicted(Trial("cable", f"lockstep-{overlap}-grpc")) for overlap in (0, 1))
    assert late.bytes == hidden.bytes == pytest.approx(7 * 187_000, rel=0.02)
    assert hidden.seconds == 2.0
    assert late.seconds == pytest.approx(2.0 + late.bytes / 2.5e6)


def test_local_steps_send_seven_payloads_with_scales_once_in_a_round() -> None:
    found = predicted(Trial("cable", LOCAL))
    assert found.bytes == pytest.approx(7 * 819_500 / 5, rel=0.02)
    assert found.seconds == pytest.approx(2.0 + found.bytes / 2.5e6)


def test_a_line_that_is_slower_down_than_up_is_the_bound() -> None:
    link = HomeLink(LinkDirection(16_000_000), LinkDirection(8_000_000))
    assert predicted(Trial("cable", "ddp"), link).seconds == pytest.approx(
        143e6 / 1e6 + 2 / 3, rel=0.01
    )


def test_diloco_pays_for_an_all_reduce_once_in_fifty_steps() -> None:
    ddp, diloco = predicted(Trial("cable", "ddp")), predicted(Trial("cable", "diloco"))
    assert diloco.bytes == ddp.bytes / 50
    assert diloco.seconds == pytest.approx(2.0 + diloco.bytes / 2.5e6)


def test_a_trial_on_a_slow_line_makes_fewer_steps_or_is_left_out() -> None:
    known = {trial.name: trial for trial in wan.trials(8, "20m", 2.0)}
    assert known["cable-lockstep-1-grpc"].steps == 22
    assert 8 <= known["dsl-poor-lockstep-1-grpc"].steps < 22
    assert (known[f"cable-{LOCAL}"].rounds, known[f"cable-{LOCAL}"].steps) == (6, 30)
    assert known[f"dsl-poor-{LOCAL}"].rounds == 4
    assert "dsl-poor-ddp" not in known
    assert "dsl-poor-diloco" not in known
    assert all(wan.trial_s(trial) <= wan.TRIAL_S_MAX for trial in known.values())


# ---- from notes and counters to a measurement


def crossed(node: int, from_s: float, until_s: float) -> tuple[float, float]:
    """A line on which 100 bytes a second go up, 10 more for each number of a node, and twice as
    many come down.
    """
    rate = 100 + 10 * node
    return rate * (until_s - from_s), 2 * rate * (until_s - from_s)


def seen(*notes: Sequence[StepNote]) -> Seen:
    return Seen(tuple(list(own) for own in notes), crossed, {"load": 1})


def steps(
    *lengths: float, compute_s: float = 2.0, arithmetic_s: float = 1.0, alone_s: float = 0.5
) -> list[StepNote]:
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    return [StepNote(start, compute_s, arithmetic_s, alone_s) for start in starts]


def test_warm_up_is_left_out_and_a_step_is_the_mean_over_nodes() -> None:
    found = measured(
        Trial("cable", "ddp", nodes=2, size="tiny"), seen(steps(50, 4, 6, 4), steps(50, 6, 6, 4))
    )
    assert found.step_s == (5.0, 6.0, 4.0)
    assert found.seconds == 5.0
    assert found.up_bytes == pytest.approx((100 * 14 / 3 + 110 * 16 / 3) / 2, abs=1)
    assert found.up_bytes_most == pytest.approx(110 * 16 / 3, abs=1)
    assert found.down_bytes == pytest.approx(2 * found.up_bytes, abs=1)
    assert found.computing == pytest.approx(3.0 / 5.0)
    assert found.computing_alone == pytest.approx(2.5 / 5.0)
    assert found.facts == {"load": 1}


def test_a_step_of_diloco_is_an_inner_one_and_a_fiftieth_of_the_outer_one() -> None:
    notes = steps(9, 2, 2, 100, arithmetic_s=0.0)
    notes[3] = StepNote(13.0, 0.0, 1.0, 0.5, sync=True)
    found = measured(Trial("cable", "diloco", nodes=1, size="tiny"), seen(notes))
    assert found.step_s == (4.0, 4.0)
    assert (found.up_bytes, found.down_bytes) == (200, 400)
    assert found.arithmetic_s == pytest.approx(0.02)
    assert found.computing == pytest.approx(2.02 / 4.0)
    assert found.facts["sync_s"] == 100


def test_a_local_step_is_a_fifth_of_its_round_from_its_beginning_to_that_of_the_next() -> None:
    rounds = (90, 0, 0, 0, 10), (3, 2, 2, 2, 11), (1, 1, 1, 1, 6)
    notes = steps(*(length for each in rounds for length in each))[:-1]  # the last never ends
    found = measured(Trial("cable", LOCAL, nodes=2, size="tiny"), seen(notes, notes))
    assert found.step_s == (20 / LOCAL_STEPS,), "the first round is left out, the last has no end"
    assert (found.up_bytes, found.up_bytes_most) == (105 * 20 / 5, 110 * 20 / 5)
    assert (found.arithmetic_s, found.arithmetic_cpu_s) == (1.0, 0.5)
    assert found.computing == pytest.approx(5 * 3.0 / 20)


@pytest.mark.parametrize("method", ["ddp", "lockstep-1-grpc", "diloco", LOCAL])
def test_too_few_steps_are_an_error_that_names_the_trial(method: str) -> None:
    with pytest.raises(DataError, match=f"cable-{method}"):
        measured(Trial("cable", method, nodes=2), seen(steps(1), steps(1, 1, 1, 1)))


def test_counters_between_two_readings_lie_on_a_straight_line() -> None:
    times, counts = [1.0, 2.0, 4.0], [(0, 0), (10, 100), (30, 100)]
    assert interpolated(times, counts, 1.5) == (5, 50)
    assert interpolated(times, counts, 3.0) == (20, 100)
    assert interpolated(times, counts, 0.0) == (0, 0)
    assert interpolated(times, counts, 9.0) == (30, 100)


def test_hiveminds_log_says_with_how_many_it_averaged(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text(
        "Nov 21 [INFO] Averaged gradients with 8 peers\n"
        "Nov 21 [INFO] Averaged parameters with 7 peers\n"
        "Nov 21 [INFO] Proceeding with local gradients\n"
    )
    (tmp_path / "node-1.log").write_text("Nov 21 [INFO] Averaged gradients with 8 peers\nother\n")
    assert group_sizes(tmp_path) == {"gradients, 8 peers": 2, "parameters, 7 peers": 1, "failed": 1}


def test_the_run_gives_every_node_one_sample_of_the_global_batch() -> None:
    spec = run_spec(Trial("cable", "demo-grpc", nodes=8))
    assert spec.algorithm.name == "demo"
    assert (
        spec.rounds.batch_samples_max,
        spec.rounds.share_samples_first,
        spec.membership.start_members,
    ) == (8, 1, 8)
    assert spec.rounds.overlap == 0


def test_the_methods_of_the_former_default_are_kept_and_not_run() -> None:
    records = [name for name, method in METHODS.items() if method.is_record]
    assert "lockstep-1-grpc-orthogonal-k64" in records
    for name in records:
        with pytest.raises(SettingsError, match="no release runs that any more"):
            run_spec(Trial("cable", name))


def test_every_node_makes_the_same_number_of_local_steps_of_one_sample() -> None:
    trial = Trial("cable", LOCAL, nodes=8, steps=30, compute_s=2.0, slowed=32)
    spec = run_spec(trial)
    assert (spec.algorithm.local_samples, spec.schedule.steps) == (1, 6)
    peers = [PeerId(f"{number:032x}") for number in range(8)]
    slow = 1000 // (2 * 32)  # thousandths of a sample a second
    unlike = {peer: (slow - number // 2, 0) for number, peer in enumerate(peers)}
    for speeds in (dict.fromkeys(peers, (0, 0)), unlike):
        shares = samples_per_share(speeds, spec.rounds, spec.rounds.compute_ms)
        assert set(shares.values()) == {LOCAL_STEPS}


def test_a_trial_asks_its_methods_algorithm_of_the_run() -> None:
    runnable = {name: method for name, method in METHODS.items() if not method.is_record}
    for name, method in runnable.items():
        algorithm = run_spec(Trial("cable", name)).algorithm
        assert (algorithm.facts.scaled, algorithm.top_k) == (method.local_steps > 0, method.top_k)
