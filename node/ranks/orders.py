"""The orders of rank 0, their answers, and the words by which ranks meet; msgpack, typed, closed.

follower    Hello ------------------------.
rank 0      judges all -> Welcome         |  refused, or how long to wait and for what
rank 0      Hold | Load | Work | Sum | Limit | Rest | Leave
follower    OrderAnswer to each but Leave
"""

from typing import Any, Literal, TypeAlias

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
    """Longest time of an order, and of silence between two."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Hold the network: its type and configuration, the types of its weights and gradients."""

    model: str
    config: dict[str, Any]
    weights: Type
    gradients: Type


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Take over the working weights, which rank 0 broadcasts one by one."""


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


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    """Add your gradients to rank 0's, and give back their memory."""


class Limit(msgspec.Struct, frozen=True, tag="limit"):
    """Take at most this part of the GPU's memory, in percent."""

    gpu_memory: int


class Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Let go of the network: the node works no more until it holds one again."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End this process."""


Order: TypeAlias = Hold | Load | Work | Sum | Limit | Rest | Leave


class OrderAnswer(msgspec.Struct, frozen=True):
    """What became of an order on a follower."""

    nats: float = 0.0
    """Cross-entropy of a pass, summed over all targets."""
    seconds: float = 0.0
    """Time that it took."""
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
