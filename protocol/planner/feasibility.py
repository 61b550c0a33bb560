"""Arithmetic on a run file before anybody joins: whether a node can build and train
its network, and how large it is. No torch; where torch is, `node.model.check` knows more.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from protocol.errors import SettingsError
from protocol.planner.needs import Needs, needs_of, state_bytes
from protocol.planner.parameters import (
    Size,
    fields_of,
    has_layout,
    known_layouts,
    require_buildable,
    size_of,
)
from protocol.planner.payload_bytes import largest_bytes, payload_bytes
from protocol.runfile import DataSpec, ModelSpec, RunSpec

BYTE_VOCABULARY = 257
"""Tokens of the built-in corpus: the bytes, and the end of a document."""

LIBRARY_CORPUS = "python-stdlib"
"""The sources of the Python that runs the node: unlike ones have unlike data."""

CLOSE = 0.9
"""Likeness of names, from 0 to 1, from which on one is a slip for the other."""

_MULTIPLES = (
    ("hidden_size", "num_attention_heads"),
    ("num_attention_heads", "num_key_value_heads"),
    ("n_embd", "n_head"),
)
"""Fields of which the first must be a multiple of the second."""

_POSITIONS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True, slots=True)
class Footprint:
    """The needs of a run's network."""

    parameters: int
    payload_bytes: float
    """Bytes of one node's payload in one round, about."""
    state_bytes: int
    """What a node saves."""
    needs: Needs


def require_feasible(spec: RunSpec) -> Footprint | None:
    """The footprint of the run's network; None for a type whose layout is not known here, of which
    little can be told. Raises `SettingsError` that names the field for a run that no node can
    train.
    """
    config = spec.model.config
    require_buildable(config)
    for field in _POSITIONS:
        positions = _number(spec.model, field)
        if positions is not None and 0 < positions < spec.data.sequence_length:
            raise SettingsError(
                f"model.config.{field}: expected at least data.sequence_length = "
                f"{spec.data.sequence_length} positions, got {positions}"
            )
    vocabulary = _number(spec.model, "vocab_size")
    builtin = spec.data.corpus == DataSpec().corpus
    if builtin and vocabulary is not None and vocabulary < BYTE_VOCABULARY:
        raise SettingsError(
            f"model.config.vocab_size: expected at least {BYTE_VOCABULARY}, the tokens of the "
            f"built-in corpus, got {vocabulary}"
        )
    if not has_layout(spec.model):
        return None
    _require_known_fields(spec.model)
    _require_multiples(spec.model)
    return _footprint(spec, size_of(spec.model))


def remarks(spec: RunSpec) -> list[str]:
    """Remarks for the operator on a run file that nothing forbids, in sentences."""
    schedule, data = spec.schedule, spec.data
    found = []
    if schedule.warmup_steps >= schedule.steps:
        found.append(
            f"schedule.warmup_steps {schedule.warmup_steps} is not below schedule.steps "
            f"{schedule.steps}: the learning rate never reaches its largest value"
        )
    if data.corpus == LIBRARY_CORPUS:
        found.append(
            f"data.corpus {data.corpus!r} is the sources of each node's own Python: nodes with "
            "another version train on other data"
        )
    elif data.corpus != DataSpec().corpus and not data.url:
        equal = "" if data.manifest_sha256 else ", and without data.manifest_sha256 nobody compares"
        found.append(
            f"data.corpus {data.corpus!r} is not built in: every node must bring it with --data"
            + equal
        )
    if spec.rounds.sums and (flaw := unsummed(spec.model)):
        found.append(f"rounds.sums: {flaw}; choose such a model, or rounds.sums = 0")
    return found


def unsummed(model: ModelSpec) -> str:
    """Why no round of a run with this model has summers; empty where rounds may have some."""
    if has_layout(model):
        return ""
    return (
        f"expected a model.type whose chunks are known without torch ({known_layouts()}), got "
        f"{model.type!r}: no round has summers, and every payload goes to everybody"
    )


def _footprint(spec: RunSpec, size: Size) -> Footprint:
    algorithm, accepted = spec.algorithm, spec.rounds.payload_bytes_max
    largest = largest_bytes(algorithm, size)
    if largest > accepted:
        raise SettingsError(
            f"rounds.payload_bytes_max: payloads of this model reach {largest} bytes, the run "
            f"accepts {accepted}; raise it"
        )
    payload, state = payload_bytes(algorithm, size), state_bytes(algorithm, size)
    return Footprint(size.parameters, payload, state, needs_of(spec, size))


def _require_known_fields(model: ModelSpec) -> None:
    known = fields_of(model)
    for name in model.config:
        if name not in known and (close := get_close_matches(name, known, 1, CLOSE)):
            raise SettingsError(f"model.config.{name}: no such field (close: {close[0]})")


def _require_multiples(model: ModelSpec) -> None:
    for larger, smaller in _MULTIPLES:
        if larger == "hidden_size" and "head_dim" in model.config:
            continue
        whole, part = _number(model, larger), _number(model, smaller)
        if whole is not None and part and whole % part:
            raise SettingsError(
                f"model.config.{larger}: expected a multiple of {smaller} = {part}, got {whole}"
            )


def _number(model: ModelSpec, field: str) -> int | None:
    found = model.config.get(field)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
