"""`lockstep init --from`, `lockstep coordinator --check-run` and the start of a coordinator: try a
run's network where torch is installed, as every node does before it joins; elsewhere, arithmetic.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from lockstep.console import bytes_text, messages, output
from lockstep.exit_codes import ExitCode
from lockstep.run_file import read_run_file
from lockstep.volunteer.needs import memory_text, sized
from protocol.codec.parameters import payload_bytes_max
from protocol.errors import SettingsError
from protocol.ids import PeerId
from protocol.mixing.topologies import Topology
from protocol.mixing.weights import validated
from protocol.planner.feasibility import Footprint, remarks, require_feasible
from protocol.planner.payload_bytes import largest_bytes
from protocol.runfile import ModelSpec, RunSpec, parse_run_json, run_json


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
    """The run with payloads as large as its model needs. `SettingsError` for a model that no
    payload is large enough for.
    """
    most = max(spec.rounds.payload_bytes_max, largest_bytes(spec.algorithm, sized(spec)))
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
    if not spec.algorithm.facts.replicas_equal:
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
    """Judges the run file at `path` as the start of a coordinator does: by arithmetic, and on one
    sample where torch is installed. Raises `SettingsError` for a run that no node can train.
    """
    spec = read_run_file(path)
    _tell_arithmetic(spec, "" if has_torch() else "torch is not installed here")
    if has_torch():
        check_run(spec)
    else:
        messages.print(
            "note: checked by arithmetic alone, not on a sample: torch is not installed here",
            soft_wrap=True,
        )


def require_trainable(run_file: Path, spec: RunSpec, *, tries: bool) -> None:
    """Refuses a new run that no node can train, with the `SettingsError` that each node would have
    met: by arithmetic and, with `tries` and where torch is installed, on one sample in a process
    of its own. Prints the size of the network, and what to know.
    """
    reason = "torch is not installed here" if tries else "--no-try-model"
    _tell_arithmetic(spec, "" if tries and has_torch() else reason)
    if tries and has_torch():
        with messages.status("trying the model on one sample; --no-try-model leaves this out"):
            _try_in_a_process(run_file)


def _tell_arithmetic(spec: RunSpec, untried: str) -> None:
    """Prints the size of the network and what to know; `SettingsError` for one that no node can
    train. `untried` is the reason why the model is not tried; empty: it is.
    """
    footprint = require_feasible(spec)
    if footprint:
        messages.print(f"model: {size_in_words(footprint)}", soft_wrap=True)
    notes = remarks(spec)
    if untried and footprint is None:
        notes.append(f"model.type {spec.model.type!r} is not checked here: {untried}")
    for note in notes:
        messages.print(f"note: {note}", soft_wrap=True, markup=False)


def size_in_words(footprint: Footprint) -> str:
    """The size of a network for people."""
    return (
        f"{footprint.parameters / 1e6:.3g} M parameters, a payload of about "
        f"{bytes_text(round(footprint.payload_bytes))} a round, "
        f"{bytes_text(footprint.state_bytes)} of state on a node's disk, "
        f"{memory_text(footprint.needs)}"
    )


def has_torch() -> bool:
    """Whether a model can be tried on this machine."""
    return all(map(find_spec, ("torch", "transformers")))


def _try_in_a_process(run_file: Path) -> None:
    """`--check-run` in a process of its own: this one stays without torch."""
    command = [sys.executable, "-m", "lockstep", "coordinator", "--check-run", str(run_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.returncode == ExitCode.SETTINGS and errors:
        raise SettingsError(errors[-1].removeprefix("error: "))
    if done.returncode != ExitCode.OK:
        last = (errors or done.stderr.splitlines() or ["it said nothing"])[-1]
        messages.print(f"note: the model could not be tried here: {last}", soft_wrap=True)
