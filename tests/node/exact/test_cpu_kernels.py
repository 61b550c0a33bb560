import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.exact import cpu_kernels
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply, update
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import Extraction
from node.exact.plain import Plain
from tests.node.exact import reference
from tests.node.exact.conftest import kernels_for

SHAPES: dict[str, tuple[int, ...]] = {
    "one": (64, 64),
    "prime": (1009, 67),
    "wide": (70, 64 * 18 + 5),  # more chunks in a row than go together
    "small": (97,),
    "scalar": (),
}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
RATES = (float(np.float32(0.004)), float(np.float32(0.9996)))


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def tensors(seed: int, layout: ChunkLayout = LAYOUT) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in layout.shapes.items()}


def votes(seed: int, *, layout: ChunkLayout = LAYOUT, empty: float = 0.2) -> list[Contribution]:
    rng = np.random.default_rng(seed)
    sent = [
        reference.random_coefficients(rng, layout.chunks, top_k=k, value_max=8, empty=empty)
        for k in (1, 30, 300)
    ]
    return [Contribution(int(rng.integers(1, 10**5)), each) for each in sent]


def both_parameters(layout: ChunkLayout, given: list[Contribution]) -> None:
    plain, found = tensors(1, layout), tensors(1, layout)
    apply(layout, plain, given, *RATES, backend=Plain(layout))
    apply(layout, found, given, *RATES, backend=kernels_for(layout))
    assert all(
        found[name].numpy().tobytes() == plain[name].numpy().tobytes() for name in layout.shapes
    )


def both_engines(demo: DemoSettings) -> list[Momentum]:
    """The plain one, and one with kernels."""
    return [Momentum(LAYOUT, demo, "cpu", backend=make(LAYOUT)) for make in (Plain, kernels_for)]


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_change_parameters_bit_for_bit_as_strips_do(threads: int) -> None:
    torch.set_num_threads(threads)
    both_parameters(LAYOUT, votes(3))


@settings(max_examples=25)
@given(
    rows=st.integers(33, 200),
    columns=st.integers(33, 1300),
    seed=st.integers(0, 10**6),
    empty=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_matrices_of_any_shape_change_bit_for_bit_alike(
    rows: int, columns: int, seed: int, empty: float
) -> None:
    layout = ChunkLayout.from_shapes({"m": (rows, columns), "n": (columns, rows)})
    both_parameters(layout, votes(seed, layout=layout, empty=empty))


@pytest.mark.parametrize("top_k", [1, 32, 255, 256, 4096])
@pytest.mark.parametrize("value_bits", [1, 4])
def test_kernels_extract_the_coefficients_of_the_plain_way(top_k: int, value_bits: int) -> None:
    taken: list[Extraction] = []
    left: list[torch.Tensor] = []
    active = torch.rand(LAYOUT.chunks, generator=torch.Generator().manual_seed(4)) > 0.2
    for engine in both_engines(DemoSettings(top_k=top_k, value_bits=value_bits)):
        engine.entries.normal_(generator=torch.Generator().manual_seed(5))
        engine.entries[7] = 0
        taken.append(engine.extract(active))
        left.append(engine.entries)
    plain, found = taken
    somewhere = torch.arange(LAYOUT.chunks) != 7  # any of equals
    assert torch.equal(found.indices[somewhere], plain.indices[somewhere])
    assert torch.equal(found.values, plain.values)
    assert torch.equal(found.previous, plain.previous)
    assert torch.equal(*left)
    assert (found.indices[7].long().diff() > 0).all()


def test_among_equal_entries_any_are_taken_and_none_twice() -> None:
    engine = Momentum(LAYOUT, DemoSettings(top_k=50), "cpu", backend=kernels_for(LAYOUT))
    engine.entries.copy_(
        torch.randint(-2, 3, engine.entries.shape, generator=torch.Generator().manual_seed(6))
    )
    sent = engine.extract()
    assert (sent.previous.abs() == 2).all()
    assert (sent.indices.long().diff(dim=1) > 0).all()


def test_gradients_of_any_dtype_and_strides_enter_alike_and_a_missing_one_as_zeros() -> None:
    odd: dict[str, torch.Tensor | None] = {**tensors(2)}
    odd["one"] = tensors(2)["one"].bfloat16()
    odd["prime"] = tensors(2)["prime"].T.contiguous().T
    active = torch.ones(LAYOUT.chunks, dtype=torch.bool)
    active[[1, 20]] = False
    momenta = []
    for engine in both_engines(DemoSettings(momentum_decay=0.9)):
        engine.accumulate(tensors(1))
        engine.accumulate(odd, active)
        engine.accumulate({**odd, "wide": None}, active)
        momenta.append(engine.entries)
    plain, found = momenta
    # The plain one may transform in bfloat16.
    assert (found - plain).abs().max() < 0.05 * plain.square().mean().sqrt()
    assert torch.nn.functional.cosine_similarity(found.flatten(), plain.flatten(), dim=0) > 0.9999


def test_parameters_that_kernels_cannot_change_in_place_go_the_plain_way() -> None:
    halves = {name: tensor.bfloat16() for name, tensor in tensors(1).items()}
    expected = {name: tensor.clone() for name, tensor in halves.items()}
    update(LAYOUT, LAYOUT.views(halves), votes(3), RATES, backend=kernels_for(LAYOUT))
    update(LAYOUT, LAYOUT.views(expected), votes(3), RATES, backend=Plain(LAYOUT))
    assert all(torch.equal(halves[name], expected[name]) for name in SHAPES)
    assert not torch.equal(halves["one"], tensors(1)["one"].bfloat16())


def test_several_threads_may_work_at_a_time() -> None:
    backend = kernels_for(LAYOUT)
    torch.set_num_threads(2)

    def work(seed: int) -> bytes:
        engine, parameters = Momentum(LAYOUT, DemoSettings(), "cpu", backend=backend), tensors(1)
        for step in range(3):
            engine.accumulate({**tensors(seed + step)})
            sent = [Contribution(1, engine.extract().coefficients)]
            apply(LAYOUT, parameters, sent, *RATES, backend=backend)
        return engine.entries.numpy().tobytes() + parameters["wide"].numpy().tobytes()

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == alone


@pytest.mark.parametrize("threads", [1, 2])
def test_every_part_is_worked_on_once_and_an_error_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(cpu_kernels, "PART_CHUNKS", 10)
    torch.set_num_threads(threads)
    parts: list[cpu_kernels.Part] = []
    cpu_kernels._spread(parts.append, 95)
    assert sorted(parts) == [(first, min(first + 10, 95)) for first in range(0, 95, 10)]

    def fail(part: cpu_kernels.Part) -> None:
        raise ValueError(f"no part {part}")

    with pytest.raises(ValueError, match="no part"):
        cpu_kernels._spread(fail, 95)


def test_kernels_work_where_nothing_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from numba.core import caching

    from node.exact.kernels.compile import MATRIX, kernel

    def double(matrix: np.ndarray) -> None:
        matrix *= 2

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    matrix = np.ones((2, 2), np.float32)
    kernel(MATRIX)(double)(matrix)
    assert (matrix == 2).all()


def test_machine_code_is_kept_until_any_of_its_sources_changes(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    folder = tmp_path / "node" / "exact" / "kernels"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    shutil.copy(Path(cpu_kernels.__file__).parent / "kernels" / "compile.py", folder)
    (folder / "used.py").write_text(
        "import numpy as np\n"
        "from node.exact.kernels import compile, part\n"
        "@compile.kernel(compile.MATRIX)\n"
        "def change(matrix):\n"
        "    part.change(matrix)\n"
        "matrix = np.ones((1, 1), np.float32)\n"
        "change(matrix)\n"
        "print(int(matrix[0, 0]), sum(change.stats.cache_hits.values()))\n"
    )

    def used(addend: int) -> str:
        (folder / "part.py").write_text(
            "from node.exact.kernels.compile import inner\n"
            f"@inner\ndef change(matrix):\n    matrix[0, 0] += {addend}\n"
        )
        command = [sys.executable, "-m", "node.exact.kernels.used"]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert [used(addend) for addend in (1, 1, 2)] == ["2 0", "2 1", "3 0"]


def test_a_part_takes_its_own_rows_alone_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient in bfloat16 is never whole in float32."""
    layout = ChunkLayout.from_shapes({"tall": (64 * 40 + 5, 70)})
    found, taken = kernels_for(layout), list[int]()
    kernels = found._kernels

    def accumulate(gradient: np.ndarray, *rest: object) -> None:
        taken.append(len(gradient))
        kernels.accumulate(gradient, *rest)

    spy = SimpleNamespace(accumulate=accumulate, SCRATCH=kernels.SCRATCH)
    monkeypatch.setattr(found, "_kernels", spy)
    monkeypatch.setattr(cpu_kernels, "PART_CHUNKS", 8)
    gradients = {name: each.bfloat16() for name, each in tensors(3, layout).items()}
    kept, expected = torch.zeros(2, layout.chunks, 64, 64)
    found.accumulate(gradients, kept, 0.5)
    Plain(layout).accumulate(gradients, expected, 0.5)
    torch.testing.assert_close(kept, expected, rtol=1e-2, atol=5e-2)  # bfloat16 on some
    assert max(taken) == 4 * 64, "two chunks in a row, eight in a part"
    assert sum(taken) == 64 * 40 + 5
