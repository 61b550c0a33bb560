"""The work of a round, as `node.round.compute` makes it, where nothing comes between two passes."""

from collections.abc import Callable, Iterable

from node.model.passes import RoundWork, Tokens
from node.model.training import TrainingModel


def do_work(
    trainee: TrainingModel, batches: Iterable[Tokens], stop: Callable[[], bool] = lambda: False
) -> RoundWork:
    """Passes until the samples end or, asked after each pass, `stop` says so."""
    passes = trainee.passes(batches)
    while passes.next() and not stop():
        pass
    return passes.finish()
