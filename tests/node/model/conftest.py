"""A small network for the tests of this room."""

import pytest
import torch
from torch import nn

from node.model.build import build_model
from tests.node.model.small import LLAMA


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    built = build_model("llama", LLAMA)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return built
