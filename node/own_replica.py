"""The replica of a node at genesis, on its device."""

import logging
from functools import partial

import torch

from node.data.corpus import Corpus
from node.model.blocks import CARD_BACKEND, keep_compiled
from node.model.build import require_fits
from node.model.check import ModelFacts, check_model, check_shared_model
from node.model.training import TrainingModel
from node.own_genesis import genesis_of
from node.ranks.crew import Crew
from node.ranks.replica import replica_of
from node.replica.factory import replica_for
from node.replica.replica import Replica
from node.settings import NodeSettings
from protocol.ids import PeerId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

log = logging.getLogger("lockstep.node")


def build_replica(
    settings: NodeSettings,
    info: RunInfo,
    device: torch.device,
    corpus: Corpus,
    own: PeerId,
    crew: Crew | None = None,
) -> Replica:
    """The replica of node `own` at genesis, on all ranks of its `crew` if it has several.
    `SettingsError` when the run file cannot be trained here.
    """
    for note in try_model(info.spec, device, crew).notes:
        log.warning("model configuration", extra={"note": note})
    genesis = genesis_of(info.spec, settings.directory / "genesis")
    parts = info.spec, info.run_id, device, settings.micro_batch, own
    if crew and settings.gpu_memory < 100:
        crew.limit(settings.gpu_memory)
    make = partial(replica_of, crew) if crew else replica_for
    replica = make(*parts, genesis=genesis)
    vocabulary, length = corpus.manifest.vocabulary_size, info.spec.data.sequence_length
    require_fits(replica.trainee.model, vocabulary, length)
    if settings.recomputes:
        replica.trainee.recompute()
    compile_on_card(replica.trainee, settings, info.spec)
    return replica


def compile_on_card(trainee: TrainingModel, settings: NodeSettings, spec: RunSpec) -> None:
    """Have torch compile the blocks for the passes of a run where a card trains alone, before
    rounds come, and keep what it makes in the node's directory. Several ranks are dealt passes of
    any size.
    """
    if trainee.device.type == "cuda" and settings.ranks == 1:
        most = trainee.micro_batch_max
        samples = min(most, spec.algorithm.batch_samples(most))  # a pass ends with its batch
        keep_compiled(settings.directory / "compiled")
        trainee.compile(CARD_BACKEND, samples, spec.data.sequence_length)


def try_model(spec: RunSpec, device: torch.device, crew: Crew | None = None) -> ModelFacts:
    """Try the run's model on one sample, or count it where only ranks together hold it;
    `SettingsError` when it cannot be trained here.
    """
    if crew and spec.algorithm.facts.steps_within_round:
        return check_shared_model(spec, device, ranks=crew.count, here=crew.here)
    return check_model(spec, device)
