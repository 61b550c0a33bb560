"""SVG figures that are the same bytes for the same data: no date, no random identifiers, text as
text.
"""

import io

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure


def canvas(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)  # the canvas registers itself: no pyplot, no global state, no display
    return figure


def svg(figure: Figure) -> bytes:
    """The figure's file."""
    blob = io.BytesIO()
    with rc_context({"svg.hashsalt": "lockstep", "svg.fonttype": "none"}):
        figure.savefig(
            blob, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight"
        )
    text = blob.getvalue().decode()
    return ("\n".join(line.rstrip() for line in text.splitlines()) + "\n").encode()
