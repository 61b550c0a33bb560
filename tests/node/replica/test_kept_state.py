"""A state that is kept until its loss is measured, on a node of one rank."""

import pytest
import torch

from node.model.build import build_model
from node.model.training import TrainingModel
from node.replica import kept_state as module
from node.replica.kept_state import CopiedState, require_room
from protocol.errors import UnavailableError
from tests.support.tiny import CONFIG

CPU = torch.device("cpu")


@pytest.mark.parametrize(("free", "has_room"), [(24, True), (23, False), (None, True)])
def test_a_copy_takes_no_memory_that_training_may_need(
    monkeypatch: pytest.MonkeyPatch, free: int | None, *, has_room: bool
) -> None:
    monkeypatch.setattr(module, "free_memory_bytes", lambda device: free)
    if has_room:
        require_room(12, CPU)
        return
    with pytest.raises(UnavailableError, match="needs 12 bytes, and 23 are free: expected 2 times"):
        require_room(12, CPU)


def test_the_loss_is_that_of_the_state_as_it_was_whatever_is_trained_meanwhile() -> None:
    trainee = TrainingModel(build_model("llama", CONFIG), CPU, 3)
    samples = torch.arange(4 * 9).reshape(4, 9) % 200
    expected = trainee.evaluate(samples) * 4 * 8
    committed = {name: each.detach().clone() for name, each in trainee.parameters.items()}
    kept = CopiedState(trainee, committed)
    with torch.no_grad():
        for tensor in (*committed.values(), *trainee.parameters.values()):
            tensor.mul_(1.5)
    assert kept.nats(samples) == expected != trainee.evaluate(samples) * 4 * 8
    assert kept.at_once == 3
