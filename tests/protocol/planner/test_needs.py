"""The needs of a run by arithmetic, from its run file alone."""

import pytest

from protocol.errors import SettingsError
from protocol.planner.needs import (
    FIXED_BYTES,
    KERNEL_CHUNKS_MIN,
    KERNELS_BYTES,
    SNAPSHOTS,
    WORKED_BYTES,
    has_room,
    needs_of,
)
from protocol.planner.parameters import MODULES_MAX, Size, require_buildable, size_of
from protocol.runfile import AlgorithmSpec, ModelSpec, RunSpec


def test_the_needs_are_those_of_the_replica_and_of_what_it_keeps() -> None:
    spec = RunSpec.model_validate(
        {"rounds": {"overlap": 0}, "retention": {"log_bytes_max": 5_000_000}}
    )
    needs = needs_of(spec, Size(parameters=1_000_000, chunks=250))
    residual = 2 * 250 * 4096
    assert needs.held_bytes == (4 + 4 + 2 + 2) * 1_000_000 + residual
    assert needs.memory_bytes == FIXED_BYTES + needs.held_bytes + 10_000_000
    saved, published = 2 * 4_000_000, 2 * 4_000_000
    assert needs.disk_bytes == 5_000_000 + SNAPSHOTS * 4_000_000 + saved + published
    overlapped = spec.model_copy(update={"rounds": spec.rounds.model_copy(update={"overlap": 1})})
    assert needs_of(overlapped, Size(1_000_000, 250)).held_bytes == needs.held_bytes + 4_000_000
    light = needs_of(spec, Size(1_000_000, 250), light=True)
    assert light.held_bytes == needs.held_bytes - 2_000_000
    assert light.kept_bytes == needs.kept_bytes == 4_000_000 + residual
    demo = spec.model_copy(update={"algorithm": AlgorithmSpec(name="demo")})
    assert needs_of(demo, Size(1_000_000, 250)).held_bytes == 8_000_000 + 4 * 250 * 4096
    large = needs_of(spec, Size(4_200_000, KERNEL_CHUNKS_MIN))
    assert large.fixed_bytes == FIXED_BYTES + KERNELS_BYTES
    assert needs_of(spec, Size(10**9, 250_000)).worked_bytes == 2 * 10**9 + WORKED_BYTES


def test_a_device_has_room_for_what_is_touched_once_a_round_if_half_of_it_stays_free() -> None:
    needs = needs_of(RunSpec(), Size(1_000_000, 250), light=True)
    assert has_room(needs, 2 * needs.held_bytes)
    assert not has_room(needs, 2 * needs.held_bytes - 1)
    assert has_room(needs, None), "where nothing is known of it"


@pytest.mark.parametrize(("exchange", "own"), [("float16", 3), ("int8", 4)])
def test_a_node_that_mixes_has_moments_and_with_int8_a_mean(exchange: str, own: int) -> None:
    algorithm = {"name": "gossip-adam", "mixing": {"exchange": exchange}}
    spec = RunSpec.model_validate(
        {"algorithm": algorithm, "retention": {"log_bytes_max": 5_000_000}}
    )
    needs = needs_of(spec, Size(parameters=1_000_000, chunks=250))
    assert needs.held_bytes == (2 + own) * 4_000_000
    saved, published = 2 * (1 + own) * 4_000_000, 2 * 4_000_000
    assert needs.disk_bytes == 5_000_000 + SNAPSHOTS * 4_000_000 + saved + published


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 2**32},
        {"n_layer": MODULES_MAX + 1},
        {"num_hidden_layers": 100, "num_experts": 1000},
        {"text_config": {"num_layers": 10**9}},
    ],
)
def test_a_network_of_endless_layers_is_refused_before_they_are_counted(
    config: dict[str, object],
) -> None:
    with pytest.raises(SettingsError, match=f"at most {MODULES_MAX} layers"):
        require_buildable(config)
    with pytest.raises(SettingsError, match="layers"):
        size_of(ModelSpec(type="llama", config=config))


def test_networks_as_they_are_built_pass() -> None:
    require_buildable({"num_hidden_layers": 96, "num_local_experts": 128, "num_experts_per_tok": 8})
    require_buildable({"layer_norm_eps": 1e-5, "layer_types": ["full"] * 4, "use_layer_norm": True})
