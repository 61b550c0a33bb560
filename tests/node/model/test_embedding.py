"""An embedding that adds its rows to `.grad` has the gradient that torch would find."""

import copy

import pytest
import torch
from torch import Tensor, nn

from node.model.build import build_model
from node.model.embedding import InPlaceEmbedding, add_rows_in_place
from node.model.training import TrainingModel

TOKENS = torch.tensor([[3, 1, 3, 0], [7, 3, 2, 2]])


class Tied(nn.Module):
    """Embeds, mixes, and scores by the same matrix."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 6, padding_idx=padding)
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding(tokens).cumsum(1).tanh())
        return scores.square().sum()


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("passes", [1, 3])
def test_the_gradient_is_that_of_torch(padding: int | None, passes: int) -> None:
    torch.manual_seed(0)
    plain = Tied(padding)
    ours = copy.deepcopy(plain)
    add_rows_in_place(ours)
    for model in (plain, ours):
        for _ in range(passes):
            model(TOKENS).backward()
    assert type(ours.embedding) is InPlaceEmbedding
    torch.testing.assert_close(ours.embedding.weight.grad, plain.embedding.weight.grad)


def test_a_copy_has_a_gradient_of_its_own() -> None:
    ours = Tied()
    add_rows_in_place(ours)
    twin = copy.deepcopy(ours)
    twin(TOKENS).backward()
    assert ours.embedding.weight.grad is None
    assert twin.embedding.weight.grad is not None


def test_a_frozen_embedding_and_a_pass_without_gradients_leave_none() -> None:
    ours = Tied()
    add_rows_in_place(ours)
    with torch.no_grad():
        ours(TOKENS)
    ours.embedding.weight.requires_grad_(requires_grad=False)
    assert not ours.embedding(TOKENS).requires_grad
    assert ours.embedding.weight.grad is None


def test_embeddings_that_do_more_stay_as_they_are() -> None:
    class Scaled(nn.Embedding):
        pass

    odd = nn.ModuleList(
        [Scaled(4, 2), nn.Embedding(4, 2, max_norm=1.0), nn.Embedding(4, 2, sparse=True)]
    )
    add_rows_in_place(odd)
    assert [type(module) for module in odd] == [Scaled, nn.Embedding, nn.Embedding]


def test_no_second_matrix_of_the_embeddings_size_is_made_in_a_pass() -> None:
    config = {"vocab_size": 50, "n_embd": 12, "n_layer": 1, "n_head": 1, "n_positions": 8}
    trainee = TrainingModel(build_model("gpt2", config))
    trainee.zero_gradients()
    from_head: list[Tensor] = []
    weight = trainee.model.get_input_embeddings().weight  # type: ignore[operator]
    weight.register_hook(from_head.append)  # is called with all that autograd adds to `.grad`
    trainee.gradient(torch.randint(0, 50, (2, 9)))
    rows = weight.grad - from_head[0]
    assert len(from_head) == 1
    assert rows.abs().sum() > 0, "the embedding's own part did not come through autograd"
