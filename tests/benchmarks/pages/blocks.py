"""Parts of a Markdown page that are computed from data. Each stands between two comments.

<!-- begin: NAME -->
the part
<!-- end -->
"""

import re
from collections.abc import Callable, Mapping, Sequence

Blocks = Mapping[str, Callable[[], str]]
"""What computes each block, by name."""

_BLOCK = re.compile(r"(?<=<!-- begin: )(?P<name>[a-z0-9-]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def rendered(text: str, blocks: Blocks) -> str:
    """The page with every block computed anew. `ValueError` for an unknown block and for one that
    is missing.
    """
    found = [match["name"] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"expected the blocks {sorted(blocks)}, got {sorted(found)}")
    return _BLOCK.sub(lambda match: f"{match['name']} -->\n{blocks[match['name']]()}\n", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are aligned left and the others right."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells, got {len(row)}: {row}")
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))
