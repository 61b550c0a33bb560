"""The loss by pieces is the loss of the whole pass, in little memory, or the whole pass is made."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from node.model import head as module
from node.model import training
from node.model.build import build_model
from node.model.head import backward_by_pieces, left_out, nats_by_pieces, plain_head
from node.model.training import TrainingModel
from tests.node.model.small import GPT2, LLAMA
from tests.support.allocations import peak_allocated_bytes
from tests.support.passes import do_work

torch.set_num_threads(1)

VOCABULARY = 32
SAMPLES = np.random.default_rng(3).integers(0, VOCABULARY, (3, 9))
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
DETERMINED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of five tokens, which divide no number of tokens here."""
    set_entries(monkeypatch, 5 * VOCABULARY)


def set_entries(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    for each in (module, training):
        monkeypatch.setattr(each, "PIECE_ENTRIES", entries)


def parts(
    dtype: torch.dtype, *, bias: bool, vocabulary: int = VOCABULARY
) -> tuple[Tensor, nn.Linear, Tensor]:
    """Hidden states of 3 samples with 7 tokens, a head, targets."""
    torch.manual_seed(0)
    head = nn.Linear(16, vocabulary, bias=bias, dtype=dtype)
    hidden = torch.randn(3, 7, 16, dtype=dtype, requires_grad=True)
    return hidden, head, torch.randint(0, vocabulary, (3, 7))


def whole(hidden: Tensor, head: nn.Linear, targets: Tensor, scale: float) -> list[Tensor]:
    """Loss and gradients as torch makes them of all logits."""
    head.zero_grad()
    nats = cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    (scale * nats).backward()
    return [nats.detach(), hidden.grad, *(each.grad.clone() for each in head.parameters())]


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_pieces_have_the_loss_and_the_gradients_of_the_whole(
    dtype: torch.dtype, bound: float, bias: bool
) -> None:
    """In float32 up to some steps of its rounding, 1.2e-7, of the largest entry: sums of 16 to 32
    terms in another order.
    """
    hidden, head, targets = parts(dtype, bias=bias)
    expected = whole(hidden, head, targets, 0.25)
    before = [torch.randn_like(each) for each in head.parameters()]
    for parameter, gradient in zip(head.parameters(), before, strict=True):
        parameter.grad = gradient.clone()
    nats, change = backward_by_pieces(hidden, head, targets, 0.25)
    added = [each.grad - was for each, was in zip(head.parameters(), before, strict=True)]
    for found, right in zip([nats, change, *added], expected, strict=True):
        assert (found - right).abs().max() <= bound * max(1.0, float(right.abs().max()))
    assert nats_by_pieces(hidden, head, targets) == nats


@pytest.mark.usefixtures("_small_pieces")
def test_where_a_device_multiplies_in_bfloat16_sums_stay_in_float32() -> None:
    hidden, head, targets = parts(torch.float32, bias=True)
    expected = whole(hidden, head, targets, 1.0)
    head.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nats, change = backward_by_pieces(hidden, head, targets, 1.0)
    found = [nats, change, *(each.grad for each in head.parameters())]
    assert {each.dtype for each in found} == {torch.float32}
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=0.02, atol=0.02)
    assert not torch.equal(change, expected[1])


def test_a_head_that_is_not_trained_gets_no_gradient() -> None:
    hidden, head, targets = parts(torch.float32, bias=True)
    head.requires_grad_(False)
    backward_by_pieces(hidden, head, targets, 1.0)
    assert [each.grad for each in head.parameters()] == [None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_a_large_vocabulary_takes_less_than_100_mb(dtype: torch.dtype) -> None:
    """Of 512 tokens the logits would be 103 MB, and three times that with what is made of them."""
    hidden, head = torch.randn(512, 8, dtype=dtype), nn.Linear(8, 50257, dtype=dtype)
    targets = torch.randint(0, 50257, (512,))
    head(hidden).sum().backward()
    peak = peak_allocated_bytes(lambda: backward_by_pieces(hidden, head, targets, 1.0))
    assert 30e6 < peak < 100e6
    assert 30e6 < peak_allocated_bytes(lambda: nats_by_pieces(hidden, head, targets)) < 100e6


@pytest.mark.skipif(
    not hasattr(Tensor, "grad_dtype"), reason="this torch has no gradients of another type"
)
def test_a_gradient_of_fewer_bits_takes_no_second_matrix_of_the_heads_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_entries(monkeypatch, 100_000)
    hidden, head = torch.randn(2, 5, 64), nn.Linear(64, 20_000, bias=False)
    head.weight.grad_dtype = torch.bfloat16
    head.weight.grad = torch.zeros_like(head.weight, dtype=torch.bfloat16)
    targets = torch.randint(0, 20_000, (2, 5))
    peak = peak_allocated_bytes(lambda: backward_by_pieces(hidden, head, targets, 1.0))
    assert peak < head.weight.nbytes / 2
    found = head.weight.grad.float()
    expected = whole(hidden.requires_grad_(), head, targets, 1.0)[2]
    torch.testing.assert_close(found, expected.float(), rtol=0.02, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "config", "by_pieces"),
    [
        ("llama", LLAMA, True),
        ("llama", LLAMA | {"tie_word_embeddings": False}, True),
        ("gpt2", GPT2 | DETERMINED, True),
        ("gptj", GPT2 | DETERMINED | {"rotary_dim": 4}, True),  # with a bias
        ("mixtral", LLAMA | EXPERTS | {"output_router_logits": True}, True),
        ("gemma2", LLAMA | {"head_dim": 8, "num_key_value_heads": 2}, False),  # a capped head
        ("granite", LLAMA | {"logits_scaling": 2.0}, False),  # a scaled one
    ],
)
def test_a_pass_by_pieces_is_the_pass(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    model_type: str,
    config: dict[str, Any],
    by_pieces: bool,
) -> None:
    torch.manual_seed(0)
    model = build_model(model_type, config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    widths: list[int] = []
    model.get_output_embeddings().register_forward_hook(
        lambda _, __, output: widths.append(output.shape[-1])
    )
    found = []
    for entries in (10**9, 5 * VOCABULARY):
        set_entries(monkeypatch, entries)
        widths.clear()
        trainee = TrainingModel(model)
        works = [do_work(trainee, [SAMPLES]) for _ in range(2)]
        gradients = {name: each.grad.clone() for name, each in trainee.parameters.items()}
        found.append((works[1].loss_nats_per_token, trainee.evaluate(SAMPLES), gradients))
    (loss, validation, expected), (ours, evaluated, gradients) = found
    assert (ours, evaluated) == pytest.approx((loss, validation), rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert (VOCABULARY not in widths) == by_pieces, "no logits stand whole"
    assert caplog.text.count("stand whole in memory") == (not by_pieces)


def test_only_a_plain_matrix_is_a_plain_head() -> None:
    model = build_model("llama", LLAMA)
    assert plain_head(model) is model.get_output_embeddings()
    model.lm_head = nn.Sequential(model.lm_head)
    assert plain_head(model) is None
    assert plain_head(nn.Linear(2, 2)) is None


def test_logits_that_a_model_changes_where_they_lie_are_not_its_heads() -> None:
    head, hidden = nn.Linear(4, 4), torch.zeros(1, 4)
    with left_out(head) as untouched:
        logits = head(hidden)
        assert untouched(logits)
        assert not untouched(logits * 1)
        assert not untouched(logits.mul_(2))
    assert head(hidden).shape == (1, 4)
    assert not torch.equal(head(hidden), hidden), "afterwards it is a head again"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("vocabulary", [37, 8, 5])
def test_a_vocabulary_that_a_card_multiplies_in_two_parts_has_the_same_loss(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, bias: bool
) -> None:
    set_entries(monkeypatch, 5 * vocabulary)
    hidden, head, targets = parts(torch.float64, bias=bias, vocabulary=vocabulary)
    expected = whole(hidden, head, targets, 0.25)
    monkeypatch.setattr(module, "is_accelerator", lambda _: True)
    head.zero_grad()
    nats, change = backward_by_pieces(hidden, head, targets, 0.25)
    found = [nats, change, *(each.grad for each in head.parameters())]
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        rows = module._logits(hidden[0], head.weight, head.bias).shape[1]
    assert rows == {37: 40, 8: 8, 5: 5}[vocabulary]
    assert nats_by_pieces(hidden, head, targets) == nats
