"""The orders of rank 0, their answers, and the words by which ranks meet; msgpack, typed, closed.

follower    Hello ------------------------.
rank 0      judges all -> Welcome         |  refused, or how long to wait and for what
rank 0      Hold | Load | Work | Regroup | Sum | Limit | Rest | Leave
            Reset | Begin | MakeStep | StandAt | Accumulate | Extract | Apply | Digest | Fetch | Put
            ApplySums | Keep | Measure
follower    OrderAnswer to each but Leave

The orders behind the first line are to ranks that own parameters: those of a run with local steps.
"""

from typing import Literal, TypeAlias

import msgspec

Type: TypeAlias = Literal["float32", "bfloat16"]
"""Type of weights or gradients, by torch's name."""


class Hello(msgspec.Struct, frozen=True):
    """A follower's words about itself; what must be alike on all ranks is compared."""

    release: str
    """Versions of Lockstep and torch."""
    settings: dict[str, str]
    """Settings that must be alike, by name."""
    host: str
    device: str = ""
    """Device in words; empty where there is none."""
    kind: str = ""
    """Type of the device, cpu or cuda."""
    error: str = ""
    """Why this rank cannot work, in words."""


class Welcome(msgspec.Struct, frozen=True):
    """Rank 0's answer to all hellos."""

    refused: str = ""
    """Why the node does not start, in words; empty where it does."""
    backend: str = "gloo"
    order_s: float = 0.0
    """Longest time of an order."""
    silence_s: float = 0.0
    """Longest time in which rank 0 gives no sign of life."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Hold the network of a run, and what you own of its replica, at genesis."""

    run: bytes
    """The run file as `protocol.runfile.run_json` writes it."""
    run_id: str
    seed: int
    """Seed of the random bits by which the node rounds."""
    weights: Type
    """Type of the working weights."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Take over rank 0's working weights, one by one: each rank has the whole network."""


class Work(msgspec.Struct, frozen=True, tag="work"):
    """Make a pass: add the gradients of your samples to those that you have."""

    shares: tuple[int, ...]
    """Samples of each rank, which lie in `tokens` in the order of ranks."""
    tokens: bytes
    """All samples as int32, little-endian, of equal length."""
    anew: bool = False
    """Whether gradients begin at zero."""
    recomputes: bool = False
    """Whether blocks are computed again on the way back."""


class Regroup(msgspec.Struct, frozen=True, tag="regroup"):
    """A pass was broken off: go on in a new process group, without what is left of it."""

    measured: bool = False
    """Whether it was to measure a loss: gradients of other passes stay."""


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    """Leave the sum of all gradients with their owners, which take the mean; give back the rest."""

    samples: int
    """Samples of all ranks."""


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Go back to genesis, as the seed makes it, with nothing that was not said."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Put what you own of the model where a round begins."""

    goes_on: bool
    """Whether that is where the model stands, ahead of the committed parameters."""
    keeps: bool = False
    """Whether a kept state is still to be measured."""


class MakeStep(msgspec.Struct, frozen=True, tag="step"):
    """Make a local step of what you own."""

    learning_rate: float


class StandAt(msgspec.Struct, frozen=True, tag="stand_at"):
    """Go on from the new committed parameters with what was moved since the round began."""


class Accumulate(msgspec.Struct, frozen=True, tag="accumulate"):
    """Add what the steps have moved to the residual."""


class Extract(msgspec.Struct, frozen=True, tag="extract"):
    """Take what is sent out of the residual of your chunks, and say it."""

    code_max: int
    """Code of the largest scale."""


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """Make a commit's step in what you own; rank 0 broadcasts the contributions one by one."""

    authors: tuple[tuple[int, int], ...]
    """Weight and number of values of each."""
    learning_rate: float
    decay: float


class ApplySums(msgspec.Struct, frozen=True, tag="apply_sums"):
    """Make a commit's step by the sums of its ranges in what you own; rank 0 broadcasts them."""

    levels: int
    """Number of levels in all chunks."""
    authors: tuple[int, int, int, int]
    """The fields of `protocol.codec.commit_sums.AuthorSet`."""
    decay: float


class Digest(msgspec.Struct, frozen=True, tag="digest"):
    """Tell the digest of what you own."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Its owner broadcasts a committed parameter."""

    name: str


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Rank 0 broadcasts a committed parameter, which its owner takes over."""

    name: str


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Keep the committed state, of which each rank has rows, beside the network that trains."""


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Tell the cross-entropy of your samples in the state that is kept."""

    shares: tuple[int, ...]
    """Samples of each rank, as in `Work`."""
    tokens: bytes


class Limit(msgspec.Struct, frozen=True, tag="limit"):
    """Take at most this part of the GPU's memory, in percent."""

    gpu_memory: int


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Let go of the network: the node works no more until it holds one again."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End this process."""


PartOrder: TypeAlias = (
    Reset
    | Begin
    | MakeStep
    | StandAt
    | Accumulate
    | Extract
    | Apply
    | ApplySums
    | Digest
    | Fetch
    | Put
    | Keep
)
Order: TypeAlias = Hold | Load | Work | Regroup | Sum | Measure | Limit | Rest | Leave | PartOrder


class OrderAnswer(msgspec.Struct, frozen=True):
    """What became of an order on a follower."""

    nats: float = 0.0
    """Cross-entropy of a pass, summed over all targets."""
    seconds: float = 0.0
    """Time of a pass by which the rank's speed is told."""
    digest: int = 0
    """Digest of what the rank owns, 64 bits."""
    unbounded: str = ""
    """What the rank was to use is not finite, in words."""
    memory_bytes: int = 0
    """Most memory of the device that the rank has held."""
    short: str = ""
    """The device has no memory for the pass, in torch's words."""
    lost: str = ""
    """An exchange with other ranks failed, in torch's words: the fault may be anybody's."""
    error: str = ""
    """The rank failed, in words."""


encode = msgspec.msgpack.encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_answer = msgspec.msgpack.Decoder(OrderAnswer).decode
decode_hello = msgspec.msgpack.Decoder(Hello).decode
decode_welcome = msgspec.msgpack.Decoder(Welcome).decode
