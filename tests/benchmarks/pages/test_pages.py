"""The pages of docs/results/ say what their data say, in the form that every page has."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.pages import __main__ as pages
from tests.benchmarks.pages import parity
from tests.benchmarks.pages.blocks import rendered, table

TOP = sorted(path.name for path in pages.RESULTS.glob("*.md"))
ALL = sorted(pages.RESULTS.rglob("*.md"))


def test_every_page_says_what_the_data_say() -> None:
    assert pages.stale() == []


def test_the_csv_is_that_of_the_data() -> None:
    assert (pages.RESULTS / "data/wan.csv").read_bytes() == pages.FILES["data/wan.csv"]()


@pytest.mark.parametrize("name", TOP)
def test_a_page_has_a_question_an_answer_limits_and_a_command_in_120_lines(name: str) -> None:
    text = (pages.RESULTS / name).read_text()
    for part in (
        "\n**Question.** ",
        "\n**Answer.** ",
        "\n## What is not shown\n",
        "\n## Command",
        "    python -m tests.",
    ):
        assert part in text, part
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize("path", ALL, ids=str)
def test_links_lead_to_files_that_exist(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", ALL, ids=str)
def test_prose_fits_100_columns(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [line for line in lines if len(line) > 100 and not line.lstrip().startswith("|")] == []


def test_figures_are_few_and_every_one_is_on_a_page() -> None:
    figures = sorted(path.name for path in (pages.RESULTS / "figures").iterdir())
    assert 0 < len(figures) <= 8
    ours = {Path(name).name for name in pages.FILES if name.startswith("figures/")}
    assert figures == sorted(ours | {"gossip-adam.svg"})  # which its own benchmark draws
    text = "".join(path.read_text() for path in ALL)
    assert [name for name in figures if f"figures/{name})" not in text] == []


def test_all_is_rendered_from_the_data_alone(tmp_path: Path) -> None:
    for name in pages.PAGES:
        bare = re.sub(
            r"(<!-- begin: [^\n]+\n).*?(?=<!-- end)",
            r"\1",
            (pages.RESULTS / name).read_text(),
            flags=re.S,
        )
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(bare)
    assert sorted(pages.stale(tmp_path)) == sorted(pages.PAGES)
    pages.render(tmp_path)
    assert pages.stale(tmp_path) == []
    for name in pages.PAGES:
        assert (tmp_path / name).read_text() == (pages.RESULTS / name).read_text()
    for name in pages.FILES:
        if name.endswith(".svg"):
            assert b"<svg" in (tmp_path / name).read_bytes()
    again = tmp_path / "figures" / "parity-curves.svg"
    assert again.read_bytes() == parity.curves(), "the same bytes for the same data"


def test_the_saving_at_eight_nodes_is_28_and_50_times() -> None:
    (row,) = [line for line in parity.volumes().splitlines() if line.startswith("| 8 |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert (cells[3], cells[5]) == ("28", "50")


def test_blocks_that_a_page_lacks_or_should_not_have_are_refused() -> None:
    text = "a\n<!-- begin: one -->\nold\n<!-- end -->\nb"
    assert rendered(text, {"one": lambda: "new"}) == "a\n<!-- begin: one -->\nnew\n<!-- end -->\nb"
    for blocks in ({}, {"two": lambda: ""}, {"one": lambda: "", "two": lambda: ""}):
        with pytest.raises(ValueError, match="expected the blocks"):
            rendered(text, blocks)


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        table(("a", "b"), [("1",)])
