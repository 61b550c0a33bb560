"""A run small enough for a test: a byte-level llama of some thirty thousand parameters and a few
pages of text.
"""

from pathlib import Path
from typing import Any

from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer
from protocol.runfile import (
    AlgorithmSpec,
    DataSpec,
    MembershipSpec,
    ModelSpec,
    RoundsSpec,
    RunSpec,
    ScheduleSpec,
)
from protocol.sections.retention import RetentionSpec

CONFIG = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

LOCAL_STEPS = AlgorithmSpec(top_k=16, local_samples=2)
DEMO = AlgorithmSpec(name="demo", top_k=16)
"""Goes with overlap 0 alone."""


def tiny_spec(
    *,
    steps: int = 6,
    overlap: Any = 1,
    members: int = 2,
    seed: int = 0,
    lease_ms: int = 20_000,
    algorithm: AlgorithmSpec = LOCAL_STEPS,
    **rounds: Any,
) -> RunSpec:
    """A run of the tiny model with short but patient instants: rounds close early, never by the
    clock.
    """
    return RunSpec(
        name="tiny",
        seed=seed,
        model=ModelSpec(config=CONFIG),
        data=DataSpec(corpus="tiny", sequence_length=32),
        algorithm=algorithm,
        schedule=ScheduleSpec(steps=steps, learning_rate=0.01, warmup_steps=1),
        rounds=RoundsSpec(
            **{
                "compute_ms": 30_000,
                "publish_ms": 30_000,
                "exchange_ms": 30_000,
                "overlap": overlap,
                "batch_samples_max": 4 * members,
                "share_samples_first": 4,
                "quorum": 1,
                **rounds,
            }
        ),
        membership=MembershipSpec(start_members=members, lease_ms=lease_ms, heartbeat_ms=500),
        retention=RetentionSpec(snapshot_every=10),
    )


def tiny_corpus(directory: Path) -> Path:
    """A prepared corpus of documents that a model can learn something from."""
    documents = [
        (
            f"document {number}",
            "".join(
                f"def function_{number}_{line}(x):\n    return x + {line}\n" for line in range(40)
            ),
        )
        for number in range(120)
    ]
    prepare(documents, directory, ByteTokenizer(), source="a test")
    return directory
