"""Blocks that are computed again give the same gradients in less memory, and so do compiled ones in
less time on a card; a model that cannot stays as it is.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from node.model.blocks import recompute_blocks, repeated
from node.model.build import build_model
from node.model.training import TrainingModel
from node.own_replica import compile_on_card
from node.settings import NodeSettings
from protocol.errors import SettingsError
from tests.node.model.small import GPT2, LLAMA
from tests.support.allocations import peak_allocated_bytes
from tests.support.passes import do_work
from tests.support.tiny import DEMO, tiny_spec

torch.set_num_threads(1)

DEEP = LLAMA | {"num_hidden_layers": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
SAMPLES = torch.randint(0, 32, (4, 17), generator=torch.Generator().manual_seed(0))


def gradients(trainee: TrainingModel) -> dict[str, Tensor]:
    """Those of a pass, with the same draws of dropout each time."""
    torch.manual_seed(1)
    do_work(trainee, [SAMPLES])
    return {name: each.grad.clone() for name, each in trainee.parameters.items()}


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", LLAMA),
        ("gpt2", GPT2 | {"resid_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("mixtral", LLAMA | EXPERTS | {"output_router_logits": True}),
    ],
)
def test_blocks_that_are_computed_again_give_the_same_gradients(
    model_type: str, config: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    trainee = TrainingModel(build_model(model_type, config))
    expected = gradients(trainee)
    assert trainee.recompute()
    assert trainee.recomputes
    found = gradients(trainee)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_they_take_less_memory_until_they_are_kept_again() -> None:
    trainee = TrainingModel(build_model("llama", DEEP))
    trainee.zero_gradients()

    def peak() -> int:
        return peak_allocated_bytes(lambda: trainee.gradient(SAMPLES))

    kept = peak()
    trainee.recompute()
    assert peak() < kept / 2
    trainee.recompute(False)
    assert not trainee.recomputes
    assert peak() == kept


def test_a_model_that_cannot_says_so_and_stays_as_it_is() -> None:
    assert not recompute_blocks(nn.Linear(2, 2))
    model = build_model("llama", LLAMA)
    model.supports_gradient_checkpointing = False
    trainee = TrainingModel(model)
    assert not trainee.recompute()
    assert not trainee.recomputes


class Memory:
    """A device that holds one sample whose blocks are computed again, or half of one."""

    def __init__(self, trainee: TrainingModel, samples: float) -> None:
        self.trainee, self.samples, self.honest = trainee, samples, trainee.gradient

    def gradient(self, piece: Tensor) -> float:
        if len(piece) / (1 + self.trainee.recomputes) > self.samples:
            raise torch.OutOfMemoryError("tried to allocate 9 GiB")
        return self.honest(piece)


def test_a_sample_that_does_not_fit_is_computed_again_before_the_node_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainee = TrainingModel(build_model("llama", LLAMA), micro_batch_max=2)
    expected = gradients(trainee)
    monkeypatch.setattr(trainee, "gradient", Memory(trainee, 0.5).gradient)
    trainee._has_fitted = False
    found = gradients(trainee)
    assert (trainee.micro_batch_max, trainee.recomputes) == (1, True)
    assert caplog.text.count("activations are computed again") == 1
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    smaller = TrainingModel(build_model("llama", LLAMA))
    monkeypatch.setattr(smaller, "gradient", Memory(smaller, 0.4).gradient)
    with pytest.raises(SettingsError, match="one sample does not fit"):
        do_work(smaller, [SAMPLES])


# ---- compiled


def compiling(test: Callable[..., None]) -> Callable[..., None]:
    """Torch's compiler warns of its own parts, and remembers what it has compiled."""
    return pytest.mark.filterwarnings("ignore")(pytest.mark.usefixtures("fresh_compiler")(test))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Compiler:
    """A backend that computes a graph as it is, and counts graphs and what they computed."""

    def __init__(self, problem: str = "") -> None:
        self.graphs, self.blocks, self.problem = 0, 0, problem

    def __call__(self, graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1

        def made(*inputs: Any) -> Any:
            self.blocks += 1
            if self.problem:
                raise RuntimeError(self.problem)
            return graph(*inputs)

        return made


@compiling
def test_all_blocks_are_compiled_once_and_only_passes_of_one_size_take_them() -> None:
    trainee, compiler = TrainingModel(build_model("llama", DEEP), micro_batch_max=4), Compiler()
    expected = gradients(trainee)
    trainee.compile(compiler, 4, 16)
    assert all(each.grad is None for each in trainee.parameters.values())
    assert (compiler.graphs, compiler.blocks) == (1, 8)
    for name, gradient in gradients(trainee).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)
    do_work(trainee, [SAMPLES[:3]])
    trainee.evaluate(SAMPLES)
    assert (compiler.graphs, compiler.blocks) == (1, 16)


@compiling
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_blocks_are_computed_again_too(backend: str) -> None:
    trainee = TrainingModel(build_model("gpt2", GPT2), micro_batch_max=4)
    trainee.model.eval()  # dropout would draw otherwise
    trainee.model.train = lambda mode=True: trainee.model  # type: ignore[method-assign]
    expected = gradients(trainee)
    assert trainee.recompute()
    trainee.compile(backend, 4, 16)
    assert trainee.blocks.are_compiled
    for name, gradient in gradients(trainee).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)


@compiling
def test_a_block_whose_call_is_computed_again_is_the_compiled_one_both_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older releases of transformers go around a block's `__call__`, newer ones in its forward."""
    trainee, compiler = TrainingModel(build_model("llama", DEEP), micro_batch_max=4), Compiler()
    expected = gradients(trainee)
    kind = type(repeated(trainee.model)[0])

    def call(block: nn.Module, *args: Tensor, **options: Any) -> Any:
        return checkpoint(nn.Module.__call__, block, *args, use_reentrant=False, **options)

    monkeypatch.setattr(kind, "__call__", call)
    trainee.compile(compiler, 4, 16)
    for name, gradient in gradients(trainee).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)
    assert (compiler.graphs, compiler.blocks) == (1, 4 * 8)


class Undecided(nn.Module):
    """A part of a block that no compiler can follow: it goes by its numbers."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: Tensor) -> Tensor:
        return self.part(values if float(values.sum()) > 0 else values.clone())


@compiling
@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("nobody's", "Invalid backend"),
        (Compiler("the kernel failed"), "the kernel failed"),
        ("eager", ""),
    ],
    ids=["no compiler", "it fails at work", "the model"],
)
def test_a_model_that_cannot_be_compiled_says_so_in_a_line_and_goes_on_as_it_is(
    backend: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = build_model("llama", LLAMA)
    if not reason:
        model.model.layers[0].mlp = Undecided(model.model.layers[0].mlp)
    trainee = TrainingModel(model, micro_batch_max=4)
    expected = gradients(trainee)
    with caplog.at_level(logging.WARNING):
        trainee.compile(backend, 4, 16)
    assert not trainee.blocks.are_compiled
    said = [each.getMessage() for each in caplog.records if each.name == "node.model.blocks"]
    assert f"blocks are not compiled, passes take longer: {reason}" in said[0]
    assert (len(set(said)), said[0].count("\n")) == (1, 0)
    for name, gradient in gradients(trainee).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)


@compiling
def test_an_error_that_is_nobodys_but_the_models_is_not_the_compilers() -> None:
    trainee = TrainingModel(build_model("llama", LLAMA), micro_batch_max=4)
    trainee.compile("eager", 4, 16)
    with pytest.raises(IndexError):
        do_work(trainee, [torch.full_like(SAMPLES, 99)])


def test_only_a_card_compiles_and_it_keeps_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CACHE_DIR", "COMPILE_THREADS"):
        monkeypatch.delenv(f"TORCHINDUCTOR_{name}", raising=False)
        monkeypatch.setenv(f"TORCHINDUCTOR_{name}", "")  # so that it is put back afterwards
        del os.environ[f"TORCHINDUCTOR_{name}"]
    asked: list[tuple[str, int, int]] = []
    settings = NodeSettings("127.0.0.1:1", directory=tmp_path)

    def on(device: str, samples: int = 8) -> Any:
        parts = {"device": torch.device(device), "micro_batch_max": samples}
        return SimpleNamespace(**parts, compile=lambda *what: asked.append(what))

    compile_on_card(on("cpu"), settings, tiny_spec())
    compile_on_card(on("cuda"), replace(settings, ranks=2), tiny_spec())
    assert asked == []
    compile_on_card(on("cuda"), settings, tiny_spec())
    compile_on_card(on("cuda", samples=1), settings, tiny_spec())
    compile_on_card(on("cuda"), settings, tiny_spec(algorithm=DEMO, overlap=0))
    assert [samples for _, samples, _ in asked] == [2, 1, 8]
    assert {(backend, length) for backend, _, length in asked} == {("inductor", 32)}
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
