"""The work of a round, as `node.round.compute` makes it, where nothing comes between two passes."""

from collections.abc import Callable, Iterable

from node.model.training import Tokens, Trainee, Work


def do_work(
    trainee: Trainee, batches: Iterable[Tokens], stop: Callable[[], bool] = lambda: False
) -> Work:
    """Passes until the samples end or, asked after each pass, `stop` says so."""
    passes = trainee.passes(batches)
    while passes.next() and not stop():
        pass
    return passes.finish()
