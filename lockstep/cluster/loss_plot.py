"""Draws a run's loss into a PNG; needs no screen."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from node.system.files import replacing_file

SIZE_INCHES = (7.0, 4.2)
DOTS_PER_INCH = 150


def plot_loss(
    path: Path, losses: Mapping[int, float], validation: Mapping[int, float], title: str
) -> None:
    """Writes a PNG with the training loss by round and the validation loss where it was measured,
    both in nats per token.

    losses, validation: loss by round; round -1 is the genesis.
    """
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)  # the canvas registers itself: no pyplot, no global state, no display
    axes = figure.add_subplot()
    rounds = sorted(losses)
    axes.plot(
        rounds,
        [losses[round_] for round_ in rounds],
        label="training, mean of the round's contributors",
    )
    axes.plot(list(validation), list(validation.values()), "o", label="validation, fixed windows")
    for round_, loss in validation.items():
        axes.annotate(
            f"{loss:.3f}", (round_, loss), textcoords="offset points", xytext=(0, 7), ha="center"
        )
    axes.set(title=title, xlabel="round", ylabel="loss (nats per token)")
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH)
