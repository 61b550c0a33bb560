"""Canonical bytes of a replica's parameters: the same on every machine, for a name (`digest`) and a
file (`snapshot`).

`protocol.codec.state_hash` defines them.
"""

from collections.abc import Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from node.replica.share import shapes_of
from protocol.codec.state_hash import parameter_header
from protocol.errors import LocalProtocolError

STRIP_WORDS = 1 << 22
"""Words that come from a device, or from a file, at once: 16 MiB."""


def canonical_bytes(parameters: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes, in pieces of at most 16 MiB, of float32 tensors of any shape and device, by name;
    `LocalProtocolError` for another dtype.
    """
    shapes = shapes_of(parameters)
    for name, words in sorted_words(parameters):
        yield parameter_header(name, shapes[name])
        for strip in strips(words, STRIP_WORDS):
            yield strip.cpu().numpy().astype("<i4", copy=False).data.cast("B")


def canonical_size(parameters: Mapping[str, Tensor]) -> int:
    """Length of `canonical_bytes`."""
    shapes = shapes_of(parameters).items()
    return sum(len(parameter_header(name, shape)) + 4 * prod(shape) for name, shape in shapes)


def sorted_words(parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's name and raw bits, int32 [entries], in sorted-name order;
    `LocalProtocolError` for a tensor that is not float32.
    """
    for name in sorted(parameters):
        tensor = parameters[name].detach()
        if tensor.dtype != torch.float32:
            raise LocalProtocolError(f"digest of {name}: expected float32, got {tensor.dtype}")
        yield name, tensor.reshape(-1).view(torch.int32)


def strips(words: Tensor, strip_words: int) -> Iterator[Tensor]:
    """Consecutive views of at most `strip_words`."""
    return (words[first : first + strip_words] for first in range(0, len(words), strip_words))
