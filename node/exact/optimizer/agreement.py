"""The words of ranks to each other before a step moves anything, and the verdict that all reach.

    head, 64 bytes whatever the groups are, from every rank
      -> a rank reports a fault            FAULT        all raise that rank's sentence
      -> plans differ                      PLAN         all raise the first difference
      -> parameters differ                 PARAMETERS   all raise the first difference
      -> a scaler found an overflow        SKIP         no rank moves
      -> otherwise                         STEP

A plan is everything that must be equal: settings, groups, shapes, the number of steps. Only after a
verdict that is an error do ranks exchange reports, which are as long as they need to be, to name
the rank and the cause. Every rank judges the same heads and reports, so that all of them raise the
same sentence in the same step.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Self

from protocol.errors import RemoteProtocolError

_MAGIC: Final = b"LSDeMo02"
"""First bytes of a head; the number counts changes of what ranks exchange."""

_HEAD: Final = struct.Struct("<8s16s16sq???13x")

DIGEST_BYTES: Final = 16
"""Length of the digests in a head: enough to find an accident."""

UNCHECKED: Final = bytes(DIGEST_BYTES)
"""Stands for the parameters' digest in a step that does not compare them."""

Lines = Mapping[str, str]
"""The values of a rank by their names, in order: "lr of group 0" -> "0.001"."""


@dataclass(frozen=True, slots=True)
class Head:
    """The message of one rank before a step."""

    plan: bytes
    """Digest of what must be equal on all ranks."""

    parameters: bytes
    """Digest of the parameters, or UNCHECKED."""

    room_bytes: int
    """Bytes of a payload that travel at once; a longer one needs another collective."""

    fault: bool
    """Whether this rank cannot make the step."""

    overflow: bool
    """Whether this rank's loss scaler found a gradient that is not finite."""

    work: bool
    """Whether this rank has a gradient."""

    def encode(self) -> bytes:
        """The head's bytes, of one length for every head."""
        flags = (self.fault, self.overflow, self.work)
        return _HEAD.pack(_MAGIC, self.plan, self.parameters, self.room_bytes, *flags)

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """`RemoteProtocolError` for the bytes of another release."""
        if len(blob) != _HEAD.size or not blob.startswith(_MAGIC):
            raise RemoteProtocolError(
                f"expected a head that starts with {_MAGIC!r} from all ranks, got {blob[:8]!r}: "
                "install one release of Lockstep on all"
            )
        return cls(*_HEAD.unpack(blob)[1:])


class Verdict(Enum):
    """The consequence that all ranks draw from all heads."""

    STEP = auto()
    SKIP = auto()
    FAULT = auto()
    PLAN = auto()
    PARAMETERS = auto()


def judge(heads: Sequence[Head]) -> Verdict:
    """The verdict on the heads of all ranks."""
    if any(head.fault for head in heads):
        return Verdict.FAULT
    if len({head.plan for head in heads}) > 1:
        return Verdict.PLAN
    if len({head.parameters for head in heads}) > 1:
        return Verdict.PARAMETERS
    if any(head.overflow for head in heads):
        return Verdict.SKIP
    return Verdict.STEP


# ---- reports: who and why


class Blame(Enum):
    """The kind of a fault that a rank reports."""

    GRADIENT = "gradient"
    SETTINGS = "settings"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for which a rank cannot make the step."""

    blame: Blame
    text: str

    def encode(self) -> bytes:
        return json.dumps([self.blame.value, self.text]).encode()

    @classmethod
    def decode(cls, report: bytes) -> Self:
        blame, text = json.loads(report)
        return cls(Blame(blame), text)


def fault_of(reports: Sequence[bytes], ranks: Sequence[int]) -> Fault:
    """The fault of the first rank that has one, with the ranks named; reports of others are
    empty.
    """
    found = {
        rank: Fault.decode(report) for rank, report in zip(ranks, reports, strict=True) if report
    }
    first, *others = found
    if len(ranks) == 1:
        return found[first]
    also = f"; {_names(others)} cannot step either" if others else ""
    return Fault(found[first].blame, f"rank {first}: {found[first].text}{also}")


def encode_lines(lines: Lines) -> bytes:
    """A report of what this rank has."""
    return json.dumps(dict(lines)).encode()


def difference(reports: Sequence[bytes], ranks: Sequence[int], labels: Lines) -> str:
    """The first line in which ranks differ: "LINE is A on rank 1 where rank 0 has B".

    Those in the wrong are the ranks that differ from what most have, or from the first rank if
    there is no majority. `labels` has longer names of lines, if any.
    """
    told: list[dict[str, str]] = [json.loads(report) for report in reports]
    for name in dict.fromkeys(name for lines in told for name in lines):
        values = [lines.get(name, "missing") for lines in told]
        if len(set(values)) > 1:
            usual, _ = Counter(values).most_common(1)[0]
            odd = [rank for rank, value in zip(ranks, values, strict=True) if value != usual]
            value = values[ranks.index(odd[0])]
            right = ranks[values.index(usual)]
            return (
                f"{labels.get(name, name)} is {value} on {_names(odd)} where rank {right} has "
                f"{usual}"
            )
    return "a difference that is gone: another thread changes parameters or settings"


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {[*ranks]}"
