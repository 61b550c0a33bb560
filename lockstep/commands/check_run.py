"""`lockstep init --from` and `lockstep coordinator --check-run`: try a run's network where torch is
installed, as every node does before it joins.
"""

from pathlib import Path

from lockstep.console import messages, output
from lockstep.run_file import read_run_file
from protocol.codec.parameters import payload_bytes_max
from protocol.errors import SettingsError
from protocol.ids import PeerId
from protocol.mixing.weights import validated
from protocol.runfile import ModelSpec, RunSpec, parse_run_json, run_json
from protocol.topologies import Topology


def published_run(path: Path) -> RunSpec:
    """The default run with the model of a published `config.json`; prints the fields that
    were left out. Raises `SettingsError` for a file that holds no model.
    """
    from node.model.configuration import read_published

    published = read_published(path)
    for note in published.notes:
        messages.print(f"note: {note}", soft_wrap=True)
    model = ModelSpec(type=published.type, config=published.config)
    if published.init_std is not None:
        model = model.model_copy(update={"init_std": published.init_std})
    return RunSpec(model=model)


def with_room(spec: RunSpec) -> RunSpec:
    """The run with payloads as large as its model needs, where they hold all parameters.
    `SettingsError` for a model whose parameters no payload holds.
    """
    if not spec.algorithm.mixes:
        return spec
    from node.model.check import count_parameters

    needed = payload_bytes_max(count_parameters(spec))
    most = max(spec.rounds.payload_bytes_max, needed)
    rounds = spec.rounds.model_copy(update={"payload_bytes_max": most})
    return parse_run_json(run_json(spec.model_copy(update={"rounds": rounds})), "lockstep init")


def mixing_facts(spec: RunSpec) -> str:
    """How fast the nodes of a gossip-adam run come together when as many take part as it starts
    with, by the contraction factor of its topology. `SettingsError` where they do not.
    """
    members = [PeerId(f"{number:032x}") for number in range(spec.membership.start_members)]
    topology = Topology(spec.algorithm.mixing.topology, seed=spec.seed)
    return f"mixing: {validated(topology, members)}"


def check_run(spec: RunSpec) -> None:
    """Tries the run's network on one sample and prints its size.

    Raises `SettingsError` when it cannot be trained. A model larger than this machine is only
    counted: it need not be trained here.
    """
    from node.model.check import (
        check_model,
        count_parameters,
        device_memory_bytes,
        require_memory,
    )
    from node.system.device import choose_device

    device = choose_device("cpu")
    parameters = count_parameters(spec)
    if spec.algorithm.mixes:
        output.print(mixing_facts(spec), soft_wrap=True)
        _require_room(spec, parameters)
    try:
        require_memory(spec, parameters, device_memory_bytes(device))
    except SettingsError as error:
        messages.print(f"note: not tried on a sample here: {error}", soft_wrap=True)
        return
    facts = check_model(spec, device)
    for note in facts.notes:
        messages.print(f"note: {note}", soft_wrap=True)
    output.print(f"model: {facts.parameters:,} parameters, can be trained")


def _require_room(spec: RunSpec, parameters: int) -> None:
    needed, accepted = payload_bytes_max(parameters), spec.rounds.payload_bytes_max
    if needed > accepted:
        raise SettingsError(
            f"rounds.payload_bytes_max: expected at least {needed} bytes for {parameters} "
            f"parameters, got {accepted}"
        )


def check_file(path: Path) -> None:
    """Tries the network of the run file at `path`, as `check_run` does."""
    check_run(read_run_file(path))
