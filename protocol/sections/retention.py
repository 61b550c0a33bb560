"""The data that a run keeps: payloads and snapshots on the nodes, checkpoints for everyone."""

from pydantic import Field

from protocol.sections.section import Section


class RetentionSpec(Section):
    """Payloads and snapshots that nodes keep so that others can catch up, and checkpoints."""

    log_rounds: int = Field(default=1000, ge=1, le=100_000_000)
    """Committed rounds whose payloads a node keeps on disk."""

    log_bytes_max: int = Field(default=4 * 1024**3, ge=1024**2)
    """Bytes of payloads that a node keeps on disk at most; the oldest rounds go first."""

    snapshot_every: int = Field(default=100, ge=1, le=1_000_000)
    """Steps between two snapshots of the parameters whose SHA-256 every node reports."""

    checkpoint_every: int = Field(default=500, ge=0, le=100_000_000)
    """Steps between two published checkpoints, which a member writes in the layout of Hugging Face;
    one more is made at the end. 0: only at the end."""

    def snapshot_due(self, step: int) -> bool:
        """Whether a snapshot is made after this step."""
        return (step + 1) % self.snapshot_every == 0

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint is published after this step, apart from the last one."""
        return self.checkpoint_every > 0 and (step + 1) % self.checkpoint_every == 0
