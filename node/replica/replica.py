"""One copy of the model: the committed parameters, and what this node needs to train them.

The committed parameters follow from the genesis and the commits so far, and from nothing else: so
every node has the same, bit for bit. How a node trains on them is its algorithm's: `local_steps`,
where the network moves away from them in each round and comes back, or `demo`, where it computes
its gradients right there. The nodes of `gossip_adam` have parameters of their own.

Beside them is what this node has computed and not sent yet. It is soft state: in memory only, and a
node that is started again begins without it. On disk are only the committed parameters and their
place in the log. When a commit leaves a payload out, its author has lost it; its samples go back to
the data order.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution, decoded
from node.exact.engine import Extraction
from node.model.build import build_undrawn, named_parameters_once
from node.model.passes import Passes, Tokens
from node.model.training import TrainingModel
from node.replica.digest import state_digest
from node.replica.genesis import fill
from node.replica.kept_state import CopiedState, KeptState
from node.replica.position import Position, described_voids, restored_voids
from node.replica.share import filled, prefixed
from node.replica.snapshot import read_snapshot
from node.replica.state_file import load_tensors, save_tensors
from protocol import wire_pb2 as wire
from protocol.codec.commit_sums import Sums
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Blob, Coefficients, Header, PayloadShape, decode, sealed
from protocol.errors import RemoteProtocolError, SettingsError, StorageError
from protocol.ids import Digest, RunId
from protocol.runfile import RunSpec
from protocol.schedule import float32_value

log = logging.getLogger("lockstep.node")

STATE_VERSION = 9
"""Version of a saved state: its fields and tensors."""

_PARAMETER = "parameter/"


class Replica(ABC):
    """State of one node for one run, on one device."""

    committed: Mapping[str, Tensor]
    """The committed parameters, float32."""
    layout: ChunkLayout
    trainee: TrainingModel

    def __init__(
        self,
        spec: RunSpec,
        run_id: RunId,
        device: torch.device,
        micro_batch_max: int,
        genesis: Path | None = None,
    ) -> None:
        """`genesis` is the snapshot at which the run begins; None: its seed makes the weights."""
        self._spec, self._run_id, self._genesis = spec, run_id, genesis
        self._build(device, micro_batch_max)
        self.payload_bytes_max, cure = self._largest_payload()
        """Bytes of the largest payload."""
        if self.payload_bytes_max > spec.rounds.payload_bytes_max:
            raise SettingsError(
                f"rounds.payload_bytes_max: payloads of this model reach {self.payload_bytes_max} "
                f"bytes, the run accepts {spec.rounds.payload_bytes_max}; raise it{cure}"
            )
        self.payloads_ignored = 0
        """Payloads of commits, and sums of their ranges, that counted for nothing, since this
        replica was made."""
        self.reset()

    def _build(self, device: torch.device, micro_batch_max: int) -> None:
        """Make the network, and find out what it consists of."""
        model, _ = self._fresh_model()
        self.layout = ChunkLayout.from_shapes(
            {name: tuple(p.shape) for name, p in named_parameters_once(model).items()}
        )
        self.trainee = self._trainee(model, device, micro_batch_max)

    def _largest_payload(self) -> tuple[int, str]:
        """Bytes of the largest payload, and what else makes it smaller."""
        return self.shape.bytes_max, ", or lower algorithm.top_k"

    def reset(self) -> None:
        """Go back to genesis, with nothing that was not said."""
        self._begin_anew()
        if self._genesis:
            read_snapshot(self._genesis, self.committed)
        self.digest = self.computed_digest()

    def _begin_anew(self) -> None:
        """Begin where the seed begins, without what is this node's own."""
        (model, noise), names = self._fresh_model(), self._own_names
        fill(model, self._spec.seed, self._spec.model.init_std, names, noise=noise)
        parameters = named_parameters_once(model)
        self.committed = self._at_genesis({name: parameters[name] for name in names})
        del model, parameters
        self._begin_empty()

    def computed_digest(self) -> int:
        """The digest of the committed parameters that are kept here."""
        return state_digest(self.committed, among=self.layout.shapes)

    @property
    def _own_names(self) -> Collection[str]:
        """Names of the parameters that are kept here: all, but on a rank."""
        return self.layout.shapes.keys()

    @abstractmethod
    def _at_genesis(self, genesis: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """The committed parameters, set to those of a network in the host's memory."""

    @abstractmethod
    def _trainee(self, model: nn.Module, device: torch.device, samples: int) -> TrainingModel:
        """The network at work, in the types that its weights and gradients have here."""

    def _fresh_model(self) -> tuple[nn.Module, frozenset[str]]:
        return build_undrawn(self._spec.model.type, self._spec.model.config)

    @property
    def shape(self) -> PayloadShape:
        """The shape of every payload."""
        return PayloadShape.of(self._spec.algorithm, self.layout.chunks)

    @property
    def store(self) -> torch.device:
        """The device that keeps what is touched once a round."""
        return self.trainee.device

    @property
    @abstractmethod
    def applies_beside(self) -> bool:
        """Whether a commit may be applied while passes are made, and `stand_at` made later: not
        where these read the committed parameters.
        """

    # ---- upstream of the payload: local

    @abstractmethod
    def begin(
        self, batches: Iterable[Tokens], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> Passes:
        """Put the model where the first gradients of a round are taken, and begin its passes.

        Only steps of the node's own need `pending`, what this node announced in the undecided round
        in front of this one, and `rate_bits`, learning rate and decay of the round.
        """

    @abstractmethod
    def stand_at(self) -> None:
        """When the round in front was settled, between two passes or after the last: put the model
        where the next gradients are taken.
        """

    @abstractmethod
    def accumulate(self) -> None:
        """Add the work just done to what was not said yet, which a `GradientError` leaves as it
        was.
        """

    @abstractmethod
    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        """Take what this node sends in a round out of that. `mean`: nodes that mix parameters take
        the mean of all in this round.
        """

    def encoded(self, header: Header, extraction: Extraction) -> tuple[bytes, int]:
        """The payload that holds an extraction, and the number of values in it."""
        shape = self.shape
        body = extraction.body(shape)
        return sealed(header, body, shape), body.values

    def header_of(self, round: int, payload: Blob) -> Header:
        """The header of a payload of a round; `RemoteProtocolError` for one that counts for
        nothing.
        """
        return decode(payload, self.shape)[0]

    def own_report(self) -> dict[str, Any]:
        """Fields of `Applied` that tell of parameters of this node's own; none where all nodes have
        the same.
        """
        return {}

    @abstractmethod
    def _begin_empty(self) -> None:
        """Begin without what is this node's own."""

    # ---- downstream of the commit: the same bits everywhere

    def apply(self, commit: Commit, blobs: Sequence[bytes]) -> int:
        """Make the commit's step; `blobs` are what it needs, in the order of `Commit.needed`, empty
        for what is void. Returns the new state digest.

        A payload that does not decode, or is not what its entry says, counts for nothing, and so
        does the result of a range: decoding is a function of its bytes alone, so it counts for
        nothing on every node. `RemoteProtocolError`, before anything changed, for a commit with
        sums that no node of this run can apply.
        """
        if commit.sums:
            self._apply_sums(commit, commit.sums, blobs)
        else:
            self._apply_payloads(commit, blobs)
        self.digest = self.computed_digest()
        return self.digest

    def _apply_sums(self, commit: Commit, sums: Sums, blobs: Sequence[bytes]) -> None:
        """Make a step by the results of ranges; they are sums of movements, which not every
        algorithm sends.
        """
        raise RemoteProtocolError(
            f"expected a commit without sums in a run of {self._spec.algorithm.name}, got round "
            f"{commit.round} with the results of {sums.ranges} ranges"
        )

    def _apply_payloads(self, commit: Commit, payloads: Sequence[bytes]) -> None:
        """Make a step by the payloads of all entries."""
        there = [pair for pair in zip(commit.entries, payloads, strict=True) if pair[1]]
        outcomes = decoded([payload for _, payload in there], self.shape)
        contributions: list[Contribution] = []
        for (entry, _), outcome in zip(there, outcomes, strict=True):
            contributions += self._counted(commit, entry, outcome)
        rates = float32_value(commit.learning_rate_bits), float32_value(commit.decay_bits)
        with torch.no_grad():
            self._step(contributions, rates)

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        """Change the committed parameters; `rates` are learning rate and decay."""
        raise NotImplementedError  # where nodes differ, `_apply_payloads` is another

    def _counted(
        self,
        commit: Commit,
        entry: Entry,
        outcome: tuple[Header, Coefficients] | RemoteProtocolError,
    ) -> list[Contribution]:
        try:
            if isinstance(outcome, RemoteProtocolError):
                raise outcome
            header, coefficients = outcome
            found = (header.run_id, header.round, header.author)
            if found != (self._run_id, commit.round, entry.author):
                raise RemoteProtocolError(
                    f"expected a payload of {entry.author} for round {commit.round}, got {found}"
                )
        except RemoteProtocolError as error:
            self._ignore(commit, entry, error)
            return []
        return [Contribution(entry.weight, coefficients)]

    def _ignore(self, commit: Commit, entry: Entry, error: RemoteProtocolError) -> None:
        """A payload of a commit counts for nothing."""
        self.payloads_ignored += 1
        log.warning(
            "payload ignored round=%s peer=%s reason=%s", commit.round, entry.author, str(error)
        )

    def kept(self) -> KeptState:
        """The state as it is now, for its loss to be measured. Only the newest is kept, as long as
        somebody has it. Raises `UnavailableError` or `torch.OutOfMemoryError` where there is no
        memory for it.
        """
        return CopiedState(self.trainee, self.committed)

    # ---- on disk

    def adopt(self, snapshot: Path, base: Path | None = None) -> int:
        """Take over the parameters of a snapshot, and keep what is in memory. `base`: where nodes
        differ, a snapshot of the newest mean in the log. Returns the new state digest.

        Raises `StorageError` for a snapshot of another model.
        """
        read_snapshot(snapshot, self.committed)
        self.digest = self.computed_digest()
        return self.digest

    def save(self, path: Path, position: Position) -> None:
        """Keep the state over a restart; `StorageError` leaves the older file in place."""
        local = self._local_tensors()
        about = {
            "version": STATE_VERSION,
            "run_id": self._run_id,
            "next_round": position.next_round,
            "head": position.head.hex(),
            "head_round": position.head_round,
            "voids": described_voids(position),
            "state_digest": f"{self.digest:016x}",
            "local_digest": f"{_digest_of_floats(local):016x}",
        }
        shared = prefixed(self.committed, _PARAMETER)
        save_tensors(path, {**shared, **local} if local else shared, about)

    def load(self, path: Path) -> Position | None:
        """Take over a saved state; None (and genesis) when there is none of this run or it is
        damaged.
        """
        if not path.exists():
            return None
        try:
            tensors, about = load_tensors(path, self.trainee.device)
            if about["run_id"] != self._run_id:
                return None
            position = self._restored(tensors, about)
        except (
            StorageError,
            KeyError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            log.warning(
                "saved state cannot be used, starts from genesis and replays the log reason=%s",
                str(error),
            )
            self.reset()
            return None
        return position

    def _restored(self, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> Position:
        if about["version"] != STATE_VERSION:
            raise StorageError(f"expected version {STATE_VERSION}, got {about['version']}")
        for name in self.layout.shapes:
            with filled(self.committed, name) as tensor:
                tensor.copy_(tensors[_PARAMETER + name])
        self.digest = self.computed_digest()
        if (found := f"{self.digest:016x}") != about["state_digest"]:
            raise StorageError(
                f"expected parameters with digest {about['state_digest']}, got {found}"
            )
        own = {name: tensors[name] for name in tensors if not name.startswith(_PARAMETER)}
        if (found := f"{_digest_of_floats(own):016x}") != about["local_digest"]:
            raise StorageError(
                f"expected own state with digest {about['local_digest']}, got {found}"
            )
        self._load_local(own)
        head, head_round = Digest(bytes.fromhex(about["head"])), about["head_round"]
        return Position(about["next_round"], head, head_round, *restored_voids(about["voids"]))

    def _local_tensors(self) -> dict[str, Tensor]:
        """What is saved beside the committed parameters; nothing where nodes are equal."""
        return {}

    def _load_local(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 - no more to do
        """Take over what `_local_tensors` returned."""


def _digest_of_floats(tensors: dict[str, Tensor]) -> int:
    return state_digest(
        {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    )
