"""Links, length and claims of the pages."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import AT_THE_ROOT, DOCS, ROOT, anchors, links, pages, slug

PATHS = re.compile(
    r"`((?:protocol|border|coordinator|node|lockstep|tests|deploy|examples|docs(?!/results))/[\w./-]+)`"
)

README_LINES_MAX = 110
COLUMNS_MAX = 120

PICTURE_BYTES_MAX = 150_000

WRITTEN = [page for page in pages() if "results" not in page.relative_to(ROOT).parts]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_leads_to_a_file_and_an_anchor(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: no file at {link}"
        if anchor:
            assert anchor in anchors(target), f"{named(page)}: no anchor for {link}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=named)
def test_a_page_of_the_site_links_to_no_file_outside_it(page: Path) -> None:
    for link in links(page):
        path = link.partition("#")[0]
        assert (page.parent / path).resolve().is_relative_to(DOCS), f"{named(page)}: {link}"


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    notes = {name for name in there if name.startswith("results/") and name.count("/") > 1}
    assert sorted(listed) == sorted(there - notes)


def test_the_index_leads_to_every_page_that_answers_a_question() -> None:
    listed = {link.partition("#")[0] for link in links(DOCS / "index.md")}
    folders = (DOCS / name for name in ("guide", "explain", "reference", "results"))
    there = {str(page.relative_to(DOCS)) for folder in folders for page in folder.glob("*.md")}
    assert there <= listed


def test_pictures_are_small_and_fetch_nothing() -> None:
    pictures = [path for path in (DOCS / "figures").iterdir() if path.suffix in (".png", ".svg")]
    assert len(pictures) >= 3
    for picture in pictures:
        assert picture.stat().st_size < PICTURE_BYTES_MAX, picture.name
        if picture.suffix == ".svg":
            assert not re.search(r"url\([\"']?http|href=|@import", picture.read_text("utf-8"))


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= README_LINES_MAX
    assert max(map(len, lines)) <= COLUMNS_MAX


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_no_page_counts_a_payload_as_if_it_were_sent_once(page: Path) -> None:
    text = page.read_text("utf-8")
    for claim in re.findall(r"\b(?:198|218|740)\b[^.|]{0,40}\bless\b", text):
        raise AssertionError(f"{named(page)}: {claim}")


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_no_page_installs_the_package_of_somebody_else(page: Path) -> None:
    assert not re.search(r"pip install (?:-\S+ )*['\"]?lockstep(?!_|-)", page.read_text("utf-8"))


def test_pages_name_files_and_modules_that_exist() -> None:
    named_paths = {path for page in WRITTEN for path in PATHS.findall(page.read_text("utf-8"))}
    missing = {path for path in named_paths if not there(path)}
    assert len(named_paths) > 20
    assert not missing


def there(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def test_anchors_are_made_as_the_site_makes_them() -> None:
    assert slug("If something fails") == "if-something-fails"
    assert slug("`lockstep data prepare`") == "lockstep-data-prepare"
    assert slug("Why am I not counted") == "why-am-i-not-counted"


def test_the_pages_at_the_root_are_there() -> None:
    assert all((ROOT / name).is_file() for name in AT_THE_ROOT)
