"""Adam with local moments is torch's own, and a window of gradients is one larger batch."""

import pytest
import torch

from node.gossip_adam.adam import AdamSettings, Moments, direction_
from protocol.errors import SettingsError

LR = 0.01


def gradients(count: int) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    return [torch.randn(7, 5, generator=chance) for _ in range(count)]


def test_with_accumulate_1_it_is_torch_s_adam() -> None:
    theirs = torch.nn.Parameter(torch.ones(7, 5))
    adam = torch.optim.Adam([theirs], lr=LR, betas=(0.9, 0.98), eps=1e-8)
    ours, moments = torch.ones(7, 5), Moments.like(theirs)
    for gradient in gradients(50):
        theirs.grad = gradient.clone()
        adam.step()
        ours -= LR * direction_(moments, gradient, AdamSettings(betas=(0.9, 0.98)))
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=2e-6)


def test_the_moments_after_whole_windows_are_those_of_the_mean_gradients() -> None:
    windowed, plain = Moments.like(torch.ones(7, 5)), Moments.like(torch.ones(7, 5))
    for first in range(0, 40, 4):
        window = gradients(40)[first : first + 4]
        for gradient in window:
            within = direction_(windowed, gradient, AdamSettings(accumulate=4))
        larger = direction_(plain, torch.stack(window).mean(0), AdamSettings())
        torch.testing.assert_close(within, larger)
    torch.testing.assert_close(windowed.first, plain.first)
    torch.testing.assert_close(windowed.second, plain.second)
    assert (windowed.windows, windowed.gradients) == (10, 0)


def test_parameters_step_on_every_gradient_and_moments_wait_for_the_window() -> None:
    moments = Moments.like(torch.ones(7, 5))
    directions = [
        direction_(moments, gradient, AdamSettings(accumulate=3)) for gradient in gradients(2)
    ]
    assert all(bool((direction != 0).all()) for direction in directions)
    assert not torch.equal(*directions)
    assert not moments.first.any()
    assert not moments.second.any()
    direction_(moments, gradients(3)[2], AdamSettings(accumulate=3))
    assert moments.first.all()


def test_a_window_reduces_the_noise_that_the_second_moment_measures() -> None:
    chance = torch.Generator().manual_seed(2)
    plain, windowed = Moments.like(torch.ones(1000)), Moments.like(torch.ones(1000))
    for _ in range(400):
        noise = torch.randn(1000, generator=chance)
        direction_(plain, noise, AdamSettings())
        direction_(windowed, noise, AdamSettings(accumulate=8))
    ratio = (windowed.second / (1 - 0.98**50)).mean() / plain.second.mean()
    assert ratio.item() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"betas": (0.9, 1.0)}, "two betas"),
        ({"epsilon": 0.0}, "epsilon above 0"),
        ({"accumulate": 0}, "accumulate of 1 to 4096, got 0"),
    ],
)
def test_settings_outside_their_bounds_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        AdamSettings(**given)  # type: ignore[arg-type]
