"""The type of a network's weights while a node trains it with local steps.

bfloat16 where this machine multiplies it quicker than float32: then weights and gradients take half
the memory, and a pass half the time. A processor does with instructions for it (AVX512_BF16, AMX),
in a network large enough that products are most of a pass. Seen on one with AVX512_BF16, by one
thread's processor time: a pass of 20 million parameters takes 0.58 of the time that it takes in
float32, one of 0.1 million 1.35 times as long. A processor without them computes such products in
float32 and converts besides.
"""

import torch
from torch import Tensor

from node.exact.dct import bfloat16_is_faster
from protocol.planner.needs import KERNEL_CHUNKS_MIN


def weights_dtype(device: torch.device, chunks: int) -> torch.dtype:
    """The type for weights of this many chunks of 4096 on a device."""
    if device.type == "cpu":
        quick = chunks >= KERNEL_CHUNKS_MIN and bfloat16_is_faster()
    else:
        quick = multiplies_bfloat16(device)
    return torch.bfloat16 if quick else torch.float32


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a GPU has instructions for products in bfloat16."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of a parameter: zeros of the type that it has, where there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
    return parameter.grad


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """The type that the gradient of a parameter has."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype
