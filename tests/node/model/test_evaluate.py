"""Promises of a checkpoint's evaluation."""

from pathlib import Path

import pytest
import torch

from node.data.corpus import Corpus
from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer, SubwordTokenizer
from node.model.build import build_model
from node.model.evaluate import evaluate_checkpoint, nats_at
from node.model.training import TrainingModel
from protocol.errors import DataError
from tests.support.checkpoints import saved_checkpoint
from tests.support.tiny import CONFIG

torch.set_num_threads(1)


def test_a_checkpoint_is_evaluated_on_fixed_validation_windows(tmp_path: Path) -> None:
    model = saved_checkpoint(tmp_path / "checkpoint")
    documents = [(f"document-{number}", f"text number {number} " * 9) for number in range(100)]
    prepare(documents, tmp_path / "data", ByteTokenizer(), source="tests")
    corpus = Corpus.open(tmp_path / "data")
    loss = evaluate_checkpoint(tmp_path / "checkpoint", corpus, samples=5, sequence_length=16)
    assert loss == pytest.approx(TrainingModel(model).evaluate(corpus.validation(5, 16)), rel=1e-6)
    tokenizer = SubwordTokenizer.trained([text for _, text in documents], 270)
    prepare(documents, tmp_path / "other", tokenizer, source="tests")
    with pytest.raises(DataError, match="expected the tokenizer of"):
        evaluate_checkpoint(
            tmp_path / "checkpoint", Corpus.open(tmp_path / "other"), samples=5, sequence_length=16
        )


def test_parameters_beside_the_model_are_measured_and_its_own_come_back() -> None:
    torch.manual_seed(1)  # some pairs of random networks are alike to a thousandth
    own, other = (TrainingModel(build_model("llama", CONFIG)) for _ in range(2))
    samples = torch.arange(3 * 9).reshape(3, 9) % 200
    with torch.no_grad():
        for parameter in other.parameters.values():
            parameter.mul_(1.5)
    before = {name: parameter.detach().clone() for name, parameter in own.parameters.items()}
    storage = {name: parameter.data_ptr() for name, parameter in own.parameters.items()}
    parameters = {name: parameter.data for name, parameter in other.parameters.items()}
    expected = other.evaluate(samples) * 3 * 8
    assert nats_at(own, parameters, samples) == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(own.evaluate(samples) * 3 * 8, rel=1e-3)
    for name, parameter in own.parameters.items():
        assert torch.equal(parameter, before[name])
        assert parameter.data_ptr() == storage[name], "the replica holds on to these tensors"
    with pytest.raises(KeyError):
        nats_at(own, {}, samples)
    assert all(own.parameters[name].data_ptr() == storage[name] for name in storage)


def test_committed_parameters_are_measured_in_all_their_bits_in_the_middle_of_a_batch() -> None:
    torch.manual_seed(0)
    exact = TrainingModel(build_model("llama", CONFIG))
    light = TrainingModel(build_model("llama", CONFIG), "cpu", 8, torch.bfloat16, torch.bfloat16)
    samples = torch.arange(4 * 9).reshape(4, 9) % 200
    parameters = {name: parameter.data for name, parameter in exact.parameters.items()}
    passes = light.passes([samples[:1], samples[1:2]])
    assert passes.next()
    assert nats_at(light, parameters, samples) == pytest.approx(exact.evaluate(samples) * 4 * 8)
    assert passes.next()
    passes.finish()
    for parameter in light.parameters.values():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype == torch.bfloat16
