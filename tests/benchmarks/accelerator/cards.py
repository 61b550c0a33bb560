"""The most that a card can do with dense matrices of bfloat16, by the vendor's data sheets, and the
operations that a token of a network takes.
"""

from collections.abc import Mapping
from typing import Any

PEAK_TERAFLOPS: Mapping[str, float] = {
    "NVIDIA H200": 989,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA L40S": 362,
    "NVIDIA L4": 121,
    "NVIDIA A10": 125,
    "NVIDIA GeForce RTX 4090": 165,
    "NVIDIA GeForce RTX 3090": 71,
}
"""Products of bfloat16 summed in float32, without sparsity, by the name that torch shows. The same
chip has other clocks in other cards, so no other name counts."""


def peak_flops(name: str) -> float | None:
    """Floating-point operations a second; None for a card that the table does not have."""
    found = PEAK_TERAFLOPS.get(name)
    return None if found is None else found * 1e12


def flops_per_token(parameters: int, config: Mapping[str, Any], length: int) -> float:
    """Operations of a forward and backward pass: six for each parameter, and twelve for each layer,
    dimension and position of attention (Chowdhery and others, PaLM, appendix B). An embedding that
    makes the logits too is one matrix, counted once.
    """
    layers = config.get("n_layer", config.get("num_hidden_layers", 12))
    width = config.get("n_embd", config.get("hidden_size", 768))
    return 6.0 * parameters + 12.0 * layers * width * length
