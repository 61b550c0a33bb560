"""A saved state, judged before an optimizer takes anything of it over.

Parameters are matched by their names where both sides have them (`DeMo(model.named_parameters())`),
else by their places.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn.parameter import UninitializedParameter

from node.exact.optimizer.group import SETTINGS, VERSION, Group, check_settings, label
from node.exact.optimizer.member import PLACE, shape_of
from protocol.errors import SettingsError

State = Mapping[str, Any]
"""What `state_dict` of an optimizer returned."""


def arranged(saved: State, groups: Sequence[Group]) -> dict[str, Any]:
    """A saved state with its groups and parameters in the order of these groups.

    `SettingsError` for the state of another optimizer, another release or other parameters. What
    torch itself judges, the number of groups and of their parameters, is left to it.
    """
    for number, theirs in enumerate(saved["param_groups"]):
        _check_version(number, theirs)
        check_settings(theirs, f" in the saved group {number}")
    found = {**saved, "param_groups": _by_name(saved["param_groups"], groups)}
    for number, theirs in enumerate(found["param_groups"][: len(groups)]):
        if ("inner" in theirs) != ("inner" in groups[number]):
            raise SettingsError(
                f"expected the saved group {number} to be {_kind(groups[number])}, got one "
                f"{_kind(theirs)}"
            )
        _check_shapes(number, groups, [saved["state"].get(key, {}) for key in theirs["params"]])
    return found


def _check_version(number: int, theirs: Mapping[str, Any]) -> None:
    of_demo = all(name in theirs for name in SETTINGS)
    if of_demo and (got := theirs.get("version", 1)) != VERSION:
        other = "an earlier" if got < VERSION else "a later"
        raise SettingsError(
            f"expected a state of version {VERSION}, got one of version {got} in the saved group "
            f"{number}: {other} release of Lockstep saved it; finish that training with that "
            "release, or load the model alone and make a new optimizer"
        )


def _by_name(theirs: Sequence[Group], groups: Sequence[Group]) -> list[Group]:
    """Saved groups, and the parameters in them, in the order of the same names in `groups`."""
    own = [_names(group) for group in groups]
    places = [{name: place for place, name in enumerate(_names(group))} for group in theirs]
    if not all(own) or not all(places):
        return [*theirs]
    known, saved = ({name for names in each for name in names} for each in (own, places))
    if lacking := [name for names in own for name in names if name not in saved]:
        more = [name for names in places for name in names if name not in known]
        instead = f", and {more[0]}, which is none of its own," if more else ""
        raise SettingsError(
            f"expected a state of {lacking[0]}, got none{instead} in the saved groups: load it "
            "for the model that it was saved of, or delete param_names from the saved groups to "
            "match by order"
        )
    found = []
    for names in own:
        number = next(number for number, each in enumerate(places) if names[0] in each)
        if odd := sorted(places[number].keys() ^ {*names}):
            raise SettingsError(
                f"expected {names[0]} in a group of {len(names)} parameters, got it in a saved "
                f"group of {len(places[number])}, at odds over {odd[0]}: group the parameters as "
                "they were when the state was saved"
            )
        keys = theirs[number]["params"]
        params = [keys[places[number][name]] for name in names]
        found.append({**theirs[number], "params": params, "param_names": names})
    return found


def _names(group: Group) -> list[str]:
    """Names of a group's parameters, if they tell them apart. Where keys are names already, as in
    a state of `torch.distributed.checkpoint`, they have been matched.
    """
    names = group.get("param_names", [])
    matched = any(isinstance(each, str) for each in group["params"])
    return [] if matched or len({*names}) < len(names) else [*names]


def _check_shapes(number: int, groups: Sequence[Group], states: Sequence[State]) -> None:
    for index, (parameter, state) in enumerate(zip(groups[number]["params"], states, strict=False)):
        if not state or isinstance(parameter, UninitializedParameter):
            continue
        name = label(groups, number, index)
        if PLACE not in state:
            raise SettingsError(
                f"expected a state of DeMo for {name}, got one of {sorted(state)}: another "
                "optimizer saved it"
            )
        if (got := shape_of(state)) != (own := tuple(parameter.shape)):
            raise SettingsError(
                f"expected a state of {name} with shape {own}, got one with shape {got}: give the "
                "parameters in the order in which they were saved, or with names on both sides "
                "(named_parameters); for a model that has changed make a new optimizer"
            )


def _kind(group: Mapping[str, Any]) -> str:
    return "with local_steps" if "inner" in group else "without local_steps"
