"""The picture of a volunteer's terminal, made by the code that fills the terminal."""

import io
import re

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from docs.generate.screens import own_status
from lockstep.volunteer.screen import render

FORMAT = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
"""Rich's form of a terminal, with the reader's own font: a picture fetches nothing."""


def terminal() -> str:
    """A node at work, as SVG."""
    console = Console(
        width=80,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text("$ ", style="dim").append("lockstep join 'lockstep://…'", style="bold"))
    console.print(render(own_status()))
    drawn = console.export_svg(title="attic", code_format=FORMAT, unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"
