"""The replica of a run whose nodes mix parameters: its own parameters, its own moments.

    begin        the model stands at this node's parameters
    passes       gradients there; when the mix of the round in front comes, at the mixed ones
    extract      x <- (1 - lr wd) x - lr Adam(mean gradient), then the payload: x as it is now
    apply        x <- x - sent + sum_j W_ij sent_j            over the edges that the commit names
                 x <- mean of all that was sent               in a round of the mean

With int8 a node sends differences to a *base*, which all nodes have to the bit: the mean of the
newest round of the mean that lies before this round in the chain, or genesis. An edge takes
differences of both ends, from which the base cancels, and a payload names its base: an edge between
two bases fails, at both ends.

The payload of a round is what the next round begins with, so with overlap it travels behind that
round's passes; the mix is taken before the step that follows them (`node.round.agenda`).

`apply` is a function of the parameters and the payloads alone, so a kill at any instant leaves no
edge half mixed: a commit names an edge only if both ends have each other's payload on disk, and a
restored node takes every commit since its state was saved. What it did meanwhile is in its own
payloads: where the parameters are not those that were sent, the sent ones take their place. A kill
loses the moments of the rounds since the save, and steps that no commit names.

A neighbour's payload that does not decode counts for nothing at either end: it is a function of its
bytes, and its author is one of the ends.

Sums are taken in float64 in the order of authors, a product and a sum at a time, so a mean has the
same bits on every node and device.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.exact.engine import require_finite
from node.gossip_adam.adam import AdamSettings
from node.gossip_adam.projection import project
from node.model.passes import Passes, Tokens
from node.replica.digest import state_digest
from node.replica.in_place import InPlaceReplica
from node.replica.own_state import OwnState, SentParameters
from node.replica.snapshot import read_snapshot
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.codec.differences import Differences, rounded
from protocol.codec.parameters import (
    HALF_MAX,
    Numbers,
    Sent,
    decode_parameters,
    encode_parameters,
    payload_bytes_max,
)
from protocol.codec.payload_header import Blob, Header
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.schedule import float32_value

log = logging.getLogger("lockstep.node")

_BASE = "base/"


class GossipAdamReplica(InPlaceReplica):
    """State of one node of a run whose nodes mix parameters, on one device. `own` must be set
    before a commit is applied.
    """

    engine: Any
    own: PeerId
    _rates: tuple[float, float]
    """Learning rate and decay of the round under way."""
    _owes_step: bool
    """Whether gradients are there that made no step yet."""
    _base: dict[str, Tensor]
    """The parameters to which differences are sent; empty where whole parameters are."""
    base_digest: int

    @property
    def numbers(self) -> int:
        """Parameters of the model."""
        return sum(tensor.numel() for tensor in self.committed.values())

    def _largest_payload(self) -> tuple[int, str]:
        numbers = sum(parameter.numel() for parameter in self.trainee.parameters.values())
        return payload_bytes_max(numbers), ""

    def reset(self) -> None:
        super().reset()
        self._take_base()

    @property
    def _differs(self) -> bool:
        return self._spec.algorithm.mixing.differs

    def _take_base(self) -> None:
        """All nodes have the parameters that this one has now."""
        self._base = (
            {name: each.clone() for name, each in self.committed.items()} if self._differs else {}
        )
        self.base_digest = state_digest(self._base)

    # ---- upstream of the payload: local

    def begin(
        self, batches: Iterable[Tokens], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> Passes:
        self._step_if_owed()
        self._rates = float32_value(rate_bits[0]), float32_value(rate_bits[1])
        return super().begin(batches, pending, rate_bits)

    def accumulate(self) -> None:
        """The gradients of the work just done make a step, before the payload or the next round.

        `GradientError` leaves everything as it was.
        """
        require_finite({name: each.grad for name, each in self.trainee.parameters.items()})
        self._owes_step = True

    def extract(self, round: int, *, mean: bool = False) -> Any:
        """Make the step, and take the parameters that this node sends. They stay as they are."""
        self._step_if_owed()
        if self._differs and not mean:
            return SentParameters(self._differences())
        whole = mean or self._spec.algorithm.mixing.exchange == "float32"
        return SentParameters(self._whole(np.float32 if whole else np.float16))

    def encoded(self, header: Header, extraction: Any) -> tuple[bytes, int]:
        values: Sent = extraction.values
        return encode_parameters(header, values), len(values)

    def _begin_empty(self) -> None:
        mixing = self._spec.algorithm.mixing
        self.engine = OwnState(self.committed, AdamSettings(accumulate=mixing.accumulate))
        self._rates, self._owes_step = (0.0, 1.0), False

    @property
    def has_stepped(self) -> bool:
        """Whether this node's own gradients have made a step, or are about to."""
        return self._owes_step or self.engine.has_stepped

    def _step_if_owed(self) -> None:
        if self._owes_step:
            self._owes_step = False
            with torch.no_grad():
                self.engine.step(self.trainee.parameters, *self._rates)
            self.digest = state_digest(self.committed)

    def _whole(self, form: type[np.floating[Any]]) -> Numbers:
        """A copy of the parameters in this form, [numbers], on the host."""
        values = _flat(self.committed)
        if form is np.float16:
            values = values.clamp(-HALF_MAX, HALF_MAX)
        found: Numbers = values.to("cpu").numpy().astype(form)
        return found

    def _differences(self) -> Differences:
        """The parameters as differences to the base."""
        found = (_flat(self.committed) - _flat(self._base)).to("cpu").numpy()
        return rounded(self.base_digest, found)

    # ---- downstream of the commit

    def _apply_payloads(self, commit: Commit, payloads: Sequence[bytes]) -> None:
        """Mix over the edges that the commit names; `payloads` in the order of its entries, empty
        for those that are not this node's business. The state is this node's alone but after a
        mean.
        """
        mean = commit.mix is not None and commit.mix.mean
        sent = self._decoded(commit, payloads, mean=mean)
        shares = commit.shares_of(self.own)
        lost = {peer for peer in shares if not self._joins(peer, sent)}
        shares = {peer: share for peer, share in shares.items() if peer not in lost}
        if mean:
            shares = dict.fromkeys(sent, Fraction(1, max(1, len(sent))))
        elif self.own in shares:
            others = (share for peer, share in shares.items() if peer != self.own)
            shares[self.own] = 1 - sum(others, Fraction())
        else:
            shares = {}
        if lost:
            log.warning("payloads ignored", extra={"round": commit.round, "peers": sorted(lost)})
        if shares:
            self._mix(shares, sent, mean=mean)
        if mean:
            self._take_base()

    def _joins(self, peer: PeerId, sent: Mapping[PeerId, Sent]) -> bool:
        """Whether what a neighbour sent and what this node sent can be mixed: the same at both
        ends.
        """
        theirs, own = sent.get(peer), sent.get(self.own)
        if isinstance(theirs, Differences) and isinstance(own, Differences):
            return theirs.base == own.base
        return theirs is not None

    def parameters_in(
        self, round: int, payload: Blob, base: Path | None = None
    ) -> dict[str, Tensor]:
        """The parameters of a node in its payload; `base`: a snapshot of those to which it has the
        differences, None for this node's base. `RemoteProtocolError` for a payload without any, or
        with differences to others.
        """
        _, values = self._read(round, payload)
        if not isinstance(values, Differences):
            whole = values
            return {
                name: torch.from_numpy(whole[first:last].astype(np.float32)).view(tensor.shape)
                for name, tensor, first, last in self._places()
            }
        found = {name: each.clone() for name, each in self._base.items()}
        if base is not None:
            read_snapshot(base, found)
        if (expected := state_digest(found)) != values.base:
            raise RemoteProtocolError(
                f"expected differences to the state {expected:016x}, got some to {values.base:016x}"
            )
        for name, _, first, last in self._places():
            flat = found[name].view(-1)
            moved = flat.double() + torch.from_numpy(values.values(first, last)).to(flat.device)
            flat.copy_(moved)
        return found

    def header_of(self, round: int, payload: Blob) -> Header:
        return self._read(round, payload)[0]

    def own_report(self) -> dict[str, Any]:
        projection = [float(number) for number in project(_flat(self.committed))]
        return {"projection": projection, "update": self.engine.update_size}

    def _read(self, round: int, payload: Blob) -> tuple[Header, Sent]:
        header, values = decode_parameters(payload, self.numbers)
        if isinstance(values, Differences) and not self._differs:
            raise RemoteProtocolError(
                f"expected parameters in {self._spec.algorithm.mixing.exchange}, got differences"
            )
        if (header.run_id, header.round) != (self._run_id, round):
            raise RemoteProtocolError(
                f"expected a payload of run {self._run_id} and round {round}, got one of run "
                f"{header.run_id} and round {header.round}"
            )
        return header, values

    def _decoded(
        self, commit: Commit, payloads: Sequence[bytes], *, mean: bool
    ) -> dict[PeerId, Sent]:
        found: dict[PeerId, Sent] = {}
        for entry, payload in zip(commit.entries, payloads, strict=True):
            if not payload:
                continue
            try:
                header, values = self._read(commit.round, payload)
                if header.author != entry.author:
                    raise RemoteProtocolError(
                        f"expected a payload of {entry.author}, got one of {header.author}"
                    )
                if isinstance(values, Differences) is not (self._differs and not mean):
                    raise RemoteProtocolError("expected the form of this round, got another")
                found[entry.author] = values
            except RemoteProtocolError as error:
                self._ignore(commit, entry, error)
        return found

    def _sent_is(self, values: Sent) -> bool:
        """Whether these parameters, as they are, were sent as these values."""
        if isinstance(values, Differences):
            return self._differences().equals(values)
        return bool((self._whole(values.dtype.type) == values).all())

    def _mix(
        self, shares: Mapping[PeerId, Fraction], sent: Mapping[PeerId, Sent], *, mean: bool
    ) -> None:
        """Mix: x <- x - own + sum of shares of what was sent. In a mean, and where other parameters
        were sent, the sum takes the place of x; with differences it is one beside the base.
        """
        own = None if mean else sent[self.own]
        differs = isinstance(own, Differences)
        stays = own is not None and self._sent_is(own)
        if isinstance(own, Differences) and own.base != self.base_digest:
            stays = True  # what was sent cannot be had again
        with torch.no_grad():
            for name, tensor, first, last in self._places():
                flat = tensor.view(-1)
                total = torch.zeros(last - first, dtype=torch.float64, device=tensor.device)
                for peer in sorted(shares):
                    part = _double(sent[peer], first, last).to(tensor.device)
                    total += part.mul_(float(shares[peer]))
                if own is not None and stays:  # what rounding took from the payload stays here
                    total += flat.double() - _double(own, first, last).to(tensor.device)
                elif differs:
                    total += self._base[name].view(-1).double()
                flat.copy_(total)

    def _places(self) -> Iterable[tuple[str, Tensor, int, int]]:
        """Name and tensor of each parameter, and its place in a payload."""
        first = 0
        for name in sorted(self.committed):
            last = first + self.committed[name].numel()
            yield name, self.committed[name], first, last
            first = last

    # ---- on disk

    def adopt(self, snapshot: Path, base: Path | None = None) -> int:
        self._owes_step = False  # its gradients were taken elsewhere
        digest = super().adopt(snapshot)
        if base is not None and self._differs:
            read_snapshot(base, self._base)
            self.base_digest = state_digest(self._base)
        return digest

    def _local_tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.engine.tensors()
        return found | {_BASE + name: each for name, each in self._base.items()}

    def _load_local(self, tensors: Mapping[str, Tensor]) -> None:
        self.engine.load(tensors)
        for name, each in self._base.items():
            each.copy_(tensors[_BASE + name])
        self.base_digest = state_digest(self._base)


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All numbers in the order of the names, float32 [numbers]."""
    return torch.cat([tensors[name].detach().flatten() for name in sorted(tensors)])


def _double(values: Sent, first: int, last: int) -> Tensor:
    if isinstance(values, Differences):
        return torch.from_numpy(values.values(first, last))
    return torch.from_numpy(values[first:last].astype(np.float64))
