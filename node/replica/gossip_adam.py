"""The replica of a run whose nodes mix parameters: its own parameters, its own moments.

    begin        the model stands at this node's parameters
    passes       gradients there; when the mix of the round in front comes, at the mixed ones
    extract      x <- (1 - lr wd) x - lr Adam(mean gradient), then the payload: x as it is now
    apply        x <- x - sent + sum_j W_ij sent_j            over the edges that the commit names
                 x <- mean of all that was sent               in a round of the mean

The payload of a round is what the next round begins with, so with overlap it travels behind that
round's passes; the mix is taken before the step that follows them (`node.round.agenda`).

`apply` is a function of the parameters and the payloads alone, so a kill at any instant leaves no
edge half mixed: a commit names an edge only if both ends have each other's payload on disk, and a
restored node takes every commit since its state was saved. What it did meanwhile is in its own
payloads: where the parameters are not those that were sent, what was sent takes their place. Lost
are the moments of the rounds since the save, and a step that was not announced.

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

from node.demo.engine import require_finite
from node.gossip_adam.adam import AdamSettings, Moments, direction_
from node.gossip_adam.projection import project
from node.model.training import GradientAccumulation, Tokens
from node.replica.digest import state_digest
from node.replica.position import Pending
from node.replica.replica import Replica
from protocol.codec.commits import Commit
from protocol.codec.parameters import (
    HALF_MAX,
    Numbers,
    decode_parameters,
    encode_parameters,
    payload_bytes_max,
)
from protocol.codec.payload_header import Blob, Header
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.schedule import float32_value

log = logging.getLogger("lockstep.node")

_MOMENTS = "moments/"
_COUNTS = ("windows", "gradients")


class SentParameters:
    """What a payload holds: float16 or float32 [numbers], on the host."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def tensors(self) -> dict[str, Tensor]:
        """What `LocalState.revive` needs after a restart, by name."""
        return {"values": self.values}


class LocalState:
    """Moments of all parameters. As the owner of what leaves a node with its payload it has little
    to do: nothing leaves.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: AdamSettings) -> None:
        self._settings = settings
        self._moments = {name: Moments.like(each) for name, each in parameters.items()}

    def step(self, parameters: Mapping[str, Tensor], rate: float, decay: float) -> None:
        """Move every parameter with a gradient: x <- decay * x - rate * Adam(gradient)."""
        for name, gradient in ((name, parameters[name].grad) for name in parameters):
            if gradient is not None:
                moved = direction_(self._moments[name], gradient, self._settings)
                parameters[name].data.mul_(decay).sub_(moved, alpha=rate)

    def tensors(self) -> dict[str, Tensor]:
        """All moments, to be saved."""
        found: dict[str, Tensor] = {}
        for name, moments in self._moments.items():
            for part, value in moments.as_state().items():
                kept = value if torch.is_tensor(value) else torch.tensor(value, dtype=torch.int64)
                found[f"{_MOMENTS}{part}/{name}"] = kept
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` returned."""
        for name, moments in self._moments.items():
            state: dict[str, Any] = {
                part: tensors[f"{_MOMENTS}{part}/{name}"] for part in moments.as_state()
            }
            counts = {part: int(state[part]) for part in _COUNTS}
            self._moments[name] = Moments.among(state | counts)

    def reclaim(self, extraction: SentParameters) -> None:
        """Nothing left the node with its payload, so nothing comes back."""

    def age(self, extraction: SentParameters) -> tuple[int, int]:
        """The age of what was sent, which matters to nobody here."""
        return 0, 0

    def revive(self, tensors: Mapping[str, Tensor], age: tuple[int, int]) -> SentParameters:
        """What was sent, as it was saved."""
        return SentParameters(tensors["values"].cpu())


class GossipAdamReplica(Replica):
    """State of one node of a run whose nodes mix parameters, on one device. `own` must be set
    before a commit is applied.
    """

    engine: Any
    own: PeerId
    _rates: tuple[float, float]
    """Learning rate and decay of the round under way."""
    _owes_step: bool
    """Whether gradients are there that made no step yet."""

    @property
    def numbers(self) -> int:
        """Parameters of the model."""
        return sum(tensor.numel() for tensor in self.committed.values())

    def _largest_payload(self) -> tuple[int, str]:
        numbers = sum(parameter.numel() for parameter in self.trainee.parameters.values())
        return payload_bytes_max(numbers), ""

    # ---- upstream of the payload: local

    def begin(
        self, batches: Iterable[Tokens], pending: Pending | None, rate_bits: tuple[int, int]
    ) -> GradientAccumulation:
        self._step_if_owed()
        self._rates = float32_value(rate_bits[0]), float32_value(rate_bits[1])
        return self.trainee.passes(batches)

    def stand_at(self, pending: Pending | None) -> None:
        """The model's tensors are this node's parameters: it stands there already."""
        self.trainee.moved()

    def accumulate(self) -> None:
        """The gradients of the work just done make a step, before the payload or the next round.

        `GradientError` leaves everything as it was.
        """
        require_finite({name: each.grad for name, each in self.trainee.parameters.items()})
        self._owes_step = self.has_momentum = True

    def extract(self, round: int, *, mean: bool = False) -> Any:
        """Make the step, and take the parameters that this node sends. They stay as they are."""
        self._step_if_owed()
        whole = mean or self._spec.algorithm.mixing.exchange == "float32"
        return SentParameters(self._sent(torch.float32 if whole else torch.float16))

    def encoded(self, header: Header, extraction: Any) -> tuple[bytes, int]:
        values: Numbers = extraction.values.numpy()
        return encode_parameters(header, values), len(values)

    def withdraw(self, round: int, payload: bytes) -> None:
        """Nothing to take out: `apply` has put what was sent in the place of what was saved."""

    def forget_momentum(self) -> None:
        """Begin again without moments."""
        mixing = self._spec.algorithm.mixing
        self.engine = LocalState(self.committed, AdamSettings(accumulate=mixing.accumulate))
        self._rates, self._owes_step = (0.0, 1.0), False
        self.has_momentum = False

    def _step_if_owed(self) -> None:
        if self._owes_step:
            self._owes_step = False
            with torch.no_grad():
                self.engine.step(self.trainee.parameters, *self._rates)
            self.digest = state_digest(self.committed)

    def _sent(self, form: torch.dtype) -> Tensor:
        """A copy of the parameters in this form, [numbers], on the host."""
        values = torch.cat([self.committed[name].flatten() for name in sorted(self.committed)])
        if form == torch.float16:
            values = values.clamp_(-HALF_MAX, HALF_MAX)
        return values.to("cpu", form)

    # ---- downstream of the commit

    def apply(self, commit: Commit, payloads: Sequence[bytes]) -> int:
        """Mix over the edges that the commit names; `payloads` in the order of its entries, empty
        for those that are not this node's business. Returns the state digest, this node's alone but
        after a mean.
        """
        sent = self._decoded(commit, payloads)
        shares = commit.shares_of(self.own)
        mean = commit.mix is not None and commit.mix.mean
        lost = shares.keys() - sent.keys()
        shares = {peer: share for peer, share in shares.items() if peer in sent}
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
            stays = not mean and self._sent_is(sent[self.own])
            self._mix(shares, sent, own=sent[self.own] if stays else None)
        self.digest = state_digest(self.committed)
        return self.digest

    def parameters_in(self, round: int, payload: Blob) -> dict[str, Tensor]:
        """The parameters of a node in its payload; `RemoteProtocolError` for one without any."""
        _, values = self._read(round, payload)
        return {
            name: torch.from_numpy(values[first:last].astype(np.float32)).view(tensor.shape)
            for name, tensor, first, last in self._places()
        }

    def header_of(self, round: int, payload: Blob) -> Header:
        return self._read(round, payload)[0]

    def projection(self) -> list[float]:
        values = torch.cat([self.committed[name].flatten() for name in sorted(self.committed)])
        return [float(number) for number in project(values)]

    def _read(self, round: int, payload: Blob) -> tuple[Header, Numbers]:
        header, values = decode_parameters(payload, self.numbers)
        if (header.run_id, header.round) != (self._run_id, round):
            raise RemoteProtocolError(
                f"expected a payload of run {self._run_id} and round {round}, got one of run "
                f"{header.run_id} and round {header.round}"
            )
        return header, values

    def _decoded(self, commit: Commit, payloads: Sequence[bytes]) -> dict[PeerId, Numbers]:
        found: dict[PeerId, Numbers] = {}
        for entry, payload in zip(commit.entries, payloads, strict=True):
            if not payload:
                continue
            try:
                header, values = self._read(commit.round, payload)
                if header.author != entry.author:
                    raise RemoteProtocolError(
                        f"expected a payload of {entry.author}, got one of {header.author}"
                    )
                found[entry.author] = values
            except RemoteProtocolError as error:
                self.payloads_ignored += 1
                log.warning(
                    "payload ignored round=%s peer=%s reason=%s",
                    commit.round,
                    entry.author,
                    str(error),
                )
        return found

    def _sent_is(self, values: Numbers) -> bool:
        """Whether these parameters, as they are, were sent as these values."""
        form = torch.float16 if values.dtype == np.float16 else torch.float32
        return bool((self._sent(form).numpy() == values).all())

    def _mix(
        self,
        shares: Mapping[PeerId, Fraction],
        sent: Mapping[PeerId, Numbers],
        *,
        own: Numbers | None,
    ) -> None:
        """Mix: x <- x - own + sum of shares of what was sent; without `own` the sum alone."""
        with torch.no_grad():
            for _, tensor, first, last in self._places():
                flat = tensor.view(-1)
                total = torch.zeros(last - first, dtype=torch.float64, device=tensor.device)
                for peer in sorted(shares):
                    part = _double(sent[peer], first, last).to(tensor.device)
                    total += part.mul_(float(shares[peer]))
                if own is not None:  # what rounding took from the payload stays here
                    total += flat.double() - _double(own, first, last).to(tensor.device)
                flat.copy_(total)

    def _places(self) -> Iterable[tuple[str, Tensor, int, int]]:
        """Name and tensor of each parameter, and its place in a payload."""
        first = 0
        for name in sorted(self.committed):
            last = first + self.committed[name].numel()
            yield name, self.committed[name], first, last
            first = last

    # ---- on disk

    def adopt(self, snapshot: Path) -> int:
        self._owes_step = False  # its gradients were taken elsewhere
        return super().adopt(snapshot)

    def _local_tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.engine.tensors()
        return found

    def _load_local(self, tensors: Mapping[str, Tensor]) -> None:
        self.engine.load(tensors)

    def _works_apart(self) -> bool:
        return False


def _double(values: Numbers, first: int, last: int) -> Tensor:
    return torch.from_numpy(values[first:last].astype(np.float64))
