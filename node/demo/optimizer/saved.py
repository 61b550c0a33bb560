"""A saved state, judged before an optimizer takes anything of it over."""

from collections.abc import Mapping, Sequence
from typing import Any

from node.demo.engine import STATE
from node.demo.optimizer.group import Group, check_settings
from node.demo.optimizer.member import INNER, MASTER
from node.demo.optimizer.places import Places
from protocol.errors import SettingsError

_OWN = {MASTER, *INNER}
"""Tensors that belong to one parameter."""

_GROUP_STATE = {*STATE}
"""Tensors that belong to a whole group: in the state of its first trained parameter."""


def check_saved(saved: Mapping[str, Any], groups: Sequence[Group]) -> None:
    """`SettingsError` for the state of another optimizer, another release or other parameters.

    What torch itself judges, the number of groups and of their parameters, is left to it.
    """
    moves = any("inner" in group for group in saved["param_groups"])
    for state in saved["state"].values():
        names = set(state) - (_OWN if moves else {MASTER})
        if names and names != _GROUP_STATE:
            raise SettingsError(
                f"expected a state of {sorted(_GROUP_STATE)}, got {sorted(state)}: another "
                "optimizer or another release saved it"
            )
    for number, (group, theirs) in enumerate(zip(groups, saved["param_groups"], strict=False)):
        check_settings(theirs, f" in the saved group {number}")
        if ("inner" in theirs) != ("inner" in group):
            raise SettingsError(
                f"expected the saved group {number} to be {_kind(group)}, got one {_kind(theirs)}"
            )
        if len(group["params"]) == len(theirs["params"]):
            _check_momentum(number, group, [saved["state"].get(name) for name in theirs["params"]])


def _check_momentum(number: int, group: Group, states: Sequence[Any]) -> None:
    parameters = {
        index: parameter
        for index, (parameter, state) in enumerate(zip(group["params"], states, strict=True))
        if state is not None and parameter.numel()
    }
    if not parameters:
        return
    index = min(parameters)
    if not (state := {name: states[index][name] for name in states[index] if name not in _OWN}):
        raise SettingsError(
            f"expected the momentum of group {number} with its parameter {index}, got none: its "
            "parameters are in another order than those that were saved"
        )
    chunks = Places.of(parameters).layout.chunks
    if len(state["momentum"]) != chunks:
        raise SettingsError(
            f"expected a momentum of {chunks} chunks for group {number}, got "
            f"{len(state['momentum'])}: the saved parameters had other shapes"
        )


def _kind(group: Mapping[str, Any]) -> str:
    return "with local_steps" if "inner" in group else "without local_steps"
