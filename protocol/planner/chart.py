"""A plan as a figure: a bar for each method, split into compute, exchange and waiting. Plain SVG,
so that it needs no library; equal plans give equal bytes.

Bars that would leave no room for the others are cut, and say how long they are.
"""

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from protocol.planner.advice import bytes_text, seconds_text
from protocol.planner.methods import Prediction

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 270, 190, 78, 26, 16

CUT: Final = 6.0
"""A bar is cut at this many times the median one."""

COLOURS: Final = {"compute": "#4063d8", "exposed": "#cb3c33", "waiting": "#b0a030"}
"""Colours of the parts, told apart by most colour-blind people and in grey."""


def chart(title: str, found: Sequence[Prediction]) -> str:
    """The SVG document."""
    lengths = sorted(one.seconds for one in found)
    most = min(lengths[-1], CUT * lengths[len(lengths) // 2]) or 1.0
    height = TOP + ROW * len(found) + 40
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, title, size=15),
        *_legend(),
    ]
    for place, one in enumerate(found):
        lines += _bar(TOP + ROW * place, one, most)
    lines += [
        _text(LEFT, height - 14, f"seconds per round; the axis ends at {seconds_text(most)}"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(top: float, one: Prediction, most: float) -> Iterator[str]:
    scale = (WIDTH - LEFT - RIGHT) / most
    yield _text(LEFT - 8, top + BAR - 3, one.title, anchor="end")
    left, room = float(LEFT), most
    for part, seconds in zip(COLOURS, (one.compute_s, one.exposed_s, one.waiting_s), strict=True):
        width = min(seconds, room) * scale
        room -= min(seconds, room)
        if width >= 0.05:
            yield (
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" '
                f'fill="{COLOURS[part]}"/>'
            )
        left += width
    if one.seconds > most * (1 + 1e-9):
        yield (
            f'<path d="M{left - 14:.1f} {top + BAR + 2} l6 -{BAR + 4} h5 l-6 {BAR + 4} z" '
            'fill="#ffffff"/>'
        )
    label = f"{seconds_text(one.seconds)}, {bytes_text(one.up_bytes)} up"
    yield _text(left + 6, top + BAR - 3, label)


def _legend() -> Iterator[str]:
    names = {
        "compute": "compute",
        "exposed": "exchange that is not hidden",
        "waiting": "waiting for others",
    }
    left = LEFT
    for part, name in names.items():
        yield f'<rect x="{left}" y="42" width="12" height="12" fill="{COLOURS[part]}"/>'
        yield _text(left + 18, 53, name)
        left += 40 + 7 * len(name)


def _text(x: float, y: float, text: str, *, size: int = 13, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="#202020">{escape(text)}</text>'
    )
