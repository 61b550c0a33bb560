"""The picture of the loss."""

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from lockstep.cluster.loss_plot import DOTS_PER_INCH, SIZE_INCHES, plot_loss


def test_the_plot_is_a_png_of_the_size_it_should_be_with_curves_in_it(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    plot_loss(path, {2: 3.0, 0: 5.0, 1: 4.0}, {-1: 5.5, 2: 3.1}, "four nodes")
    pixels = imread(path)
    assert pixels.shape[:2] == tuple(
        round(inches * DOTS_PER_INCH) for inches in reversed(SIZE_INCHES)
    )
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10


def test_other_losses_give_another_picture(tmp_path: Path) -> None:
    plot_loss(tmp_path / "a.png", {0: 5.0, 1: 4.0}, {}, "title")
    plot_loss(tmp_path / "b.png", {0: 5.0, 1: 4.5}, {}, "title")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()
