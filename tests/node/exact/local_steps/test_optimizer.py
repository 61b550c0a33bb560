"""Muon moves matrices, AdamW the rest, and their state outlives a restart."""

import pytest
import torch
from torch import Tensor, nn

from node.exact.local_steps.optimizer import LocalOptimizer
from protocol.errors import LocalProtocolError, SettingsError


class Small(nn.Module):
    """An embedding, a matrix, a gain, a kernel of three dimensions, and an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.matrix = nn.Linear(8, 6)
        self.kernel = nn.Conv1d(2, 3, 4)
        self.output = nn.Linear(6, 11, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.output


def small(seed: int = 0) -> tuple[Small, LocalOptimizer, dict[str, nn.Parameter]]:
    torch.manual_seed(seed)
    model = Small()
    parameters = dict(model.named_parameters())
    return model, LocalOptimizer(model, parameters), parameters


def step(optimizer: LocalOptimizer, parameters: dict[str, nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step(0.01)


def test_only_matrices_that_are_no_tables_are_moved_by_muon() -> None:
    _, optimizer, parameters = small()
    step(optimizer, parameters, 1)
    kinds = {name.rpartition("/")[0] for name in optimizer.state() if "momentum" in name}
    assert kinds == {"matrix.weight"}
    adam = {name.rpartition("/")[0] for name in optimizer.state() if "exp_avg_sq" in name}
    assert adam == parameters.keys() - kinds


def test_a_step_moves_no_table_or_gain_further_than_the_rate_and_a_matrix_about_a_fifth() -> None:
    _, optimizer, parameters = small()
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    step(optimizer, parameters, 1)
    moved = {
        name: (p.detach() - before[name]).square().mean().sqrt() for name, p in parameters.items()
    }
    for name, size in moved.items():
        assert float(size) == pytest.approx(0.002 if name == "matrix.weight" else 0.01, rel=0.35)


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    _, optimizer, parameters = small()
    for seed in range(3):
        step(optimizer, parameters, seed)
    model, again, others = small()
    assert again.state() == {}
    model.load_state_dict({name: p.detach().clone() for name, p in parameters.items()})
    again.load({name: tensor.clone() for name, tensor in optimizer.state().items()})
    for each, of in ((optimizer, parameters), (again, others)):
        step(each, of, 9)
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name])


@pytest.mark.parametrize(
    "state", [{"no.such/exp_avg": torch.zeros(2)}, {"matrix.weight/momentum_buffer": torch.ones(3)}]
)
def test_the_state_of_another_model_is_refused(state: dict[str, Tensor]) -> None:
    with pytest.raises(LocalProtocolError, match="optimizer's state of this model"):
        small()[1].load(state)


def test_a_torch_without_muon_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(SettingsError, match=r"need torch 2\.9 or later, got .*; update it"):
        small()
