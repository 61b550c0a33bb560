"""An optimizer that exchanges every step."""

from typing import Any

from node.exact.optimizer import DeMo


def every_step(params: Any, lr: float | None = None, **settings: Any) -> DeMo:
    """`DeMo` without local steps."""
    return DeMo(params, lr, local_steps=0, **settings)
