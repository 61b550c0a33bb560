"""How much each member is asked to do in a round. Integer arithmetic: the same input gives the same shares."""

from collections.abc import Mapping

from protocol.ids import PeerId
from protocol.runfile import RoundsSpec

HEADROOM_PERCENT = 125
"""A share is this much of what the measured speed can do until the bell, so that a node that got faster shows it."""


def samples_per_share(speeds: Mapping[PeerId, tuple[int, int]], rounds: RoundsSpec) -> dict[PeerId, int]:
    """Samples to lease to each member.

    `speeds[peer]` is (thousandths of a sample per second, 0 if unknown; strikes). Each member is asked for what
    it can do until the bell, halved per strike, at least one sample. When the sum exceeds `batch_samples_max`,
    everyone keeps one sample and what is wanted beyond it is cut down in proportion, the remainder going to the
    largest fractions, ties by id; so the sum exceeds the bound only when there are more members than samples."""
    wanted = {peer: _wanted(*speeds[peer], rounds) for peer in sorted(speeds)}
    total = sum(wanted.values())
    if total <= rounds.batch_samples_max:
        return wanted
    beyond, spare = total - len(wanted), max(0, rounds.batch_samples_max - len(wanted))
    if not beyond:
        return wanted  # more members than samples: one each
    parts = {peer: divmod((want - 1) * spare, beyond) for peer, want in wanted.items()}
    cut = {peer: 1 + whole for peer, (whole, _) in parts.items()}
    by_fraction = sorted(parts, key=lambda peer: (-parts[peer][1], peer))
    for peer in by_fraction[: len(wanted) + spare - sum(cut.values())]:
        cut[peer] += 1
    return cut


def smoothed_speed(speed: int, samples: int, compute_ms: int) -> int:
    """New estimate, in thousandths of a sample per second, after `samples` took `compute_ms`."""
    measured = samples * 1_000_000 // max(1, compute_ms)
    return measured if speed == 0 else (3 * speed + measured) // 4


def _wanted(speed: int, strikes: int, rounds: RoundsSpec) -> int:
    able = speed * rounds.compute_ms * HEADROOM_PERCENT // 100_000_000 if speed else rounds.share_samples_first
    return max(1, min(able, rounds.batch_samples_max) >> strikes)
