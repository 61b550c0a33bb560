"""Words about the processors of this machine. Pure: the facts are arguments."""

import re
from dataclasses import dataclass

MPS_REFUSAL = (
    "MPS lacks float64, and that its products are the same bits as a CPU's is not shown: "
    "a GPU of Apple is not used"
)
"""The reason why no node computes on MPS."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that torch and the operating system tell."""

    cuda: str = ""
    """Version of CUDA that torch is built for; empty: none."""
    hip: str = ""
    """Version of ROCm's HIP that torch is built for; empty: none."""
    gpus: int = 0
    """GPUs that torch can use as "cuda", of CUDA or of ROCm."""
    mps: bool = False
    """Whether torch can use a GPU of Apple."""
    nvidia: bool = False
    """Whether a driver of NVIDIA is loaded."""
    amd: bool = False
    """Whether a driver of AMD for computing is loaded."""


def gpu_name(name: str, facts: Facts) -> str:
    """A GPU in words, for tables: its own name, and ROCm's where torch calls it "cuda" too."""
    if not facts.hip:
        return name
    version = re.match(r"\d+(\.\d+)?", facts.hip)
    return f"{name} (ROCm {version[0]})" if version else f"{name} (ROCm)"


def unused(facts: Facts) -> str:
    """Why a GPU of this machine is not used, with a remedy after a semicolon; empty where none is
    idle.
    """
    if facts.gpus:
        return ""
    if facts.mps:
        return f"{MPS_REFUSAL}; nothing, the CPU trains"
    wanted = ["CUDA"] * facts.nvidia + ["ROCm"] * facts.amd
    built = "CUDA" if facts.cuda else "ROCm" if facts.hip else "CPUs"
    if wanted and built not in wanted:
        return (
            f"the driver of a GPU is loaded, and this torch is built for {built}; install the "
            f"build of torch for {wanted[0]} (pytorch.org names its index)"
        )
    if wanted:
        return (
            f"the driver of a GPU is loaded, and torch finds no GPU of {built}; see that this user "
            "may open it, and that the driver is not older than torch needs"
        )
    return ""
