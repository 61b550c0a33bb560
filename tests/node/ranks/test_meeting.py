from typing import Any

import msgspec
import pytest

from node.ranks.meeting import refusal
from node.ranks.orders import Hello
from protocol.errors import LockstepError, SettingsError, VersionError

OWN = Hello("lockstep 1 with torch 2", {"coordinator": "h:1", "data": ""}, "a", "a card", "cuda")


def judged(**changes: Any) -> LockstepError | None:
    return refusal([OWN, OWN, msgspec.structs.replace(OWN, host="b", **changes)])


def test_ranks_that_are_alike_are_one_node() -> None:
    assert judged() is None
    assert judged(device="another card") is None


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (
            {"release": "lockstep 2 with torch 2", "error": "too"},
            VersionError,
            "rank 2 (on b) runs lockstep 2 with torch 2, rank 0 lockstep 1 with torch 2: install",
        ),
        (
            {"error": "device: cuda:1 asked for, found 1 CUDA devices"},
            SettingsError,
            "rank 2 (on b): device: cuda:1 asked for, found 1 CUDA devices",
        ),
        (
            {"settings": {"coordinator": "h:2", "data": ""}},
            SettingsError,
            "coordinator: expected 'h:1' on all ranks, as on rank 0, found 'h:2' on rank 2 (on b)",
        ),
        (
            {"settings": {"coordinator": "h:1", "data": "/other"}},
            SettingsError,
            "data: expected '' on all ranks, as on rank 0, found '/other' on rank 2 (on b); start",
        ),
        (
            {"kind": "cpu"},
            SettingsError,
            "device: rank 0 has a graphics card and rank 2 (on b) has none; give every rank one",
        ),
    ],
)
def test_an_unlike_rank_is_refused_in_one_sentence(
    changes: dict[str, Any], kind: type[LockstepError], words: str
) -> None:
    error = judged(**changes)
    assert type(error) is kind
    assert str(error).startswith(words)


def test_a_card_that_rank_0_lacks_is_told_as_such() -> None:
    error = refusal([msgspec.structs.replace(OWN, kind="cpu"), OWN])
    assert str(error).startswith("device: rank 1 (on a) has a graphics card and rank 0 has none")
