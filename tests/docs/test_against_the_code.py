"""The pages say what the code says: generated pages, commands, exit codes, dependencies."""

import ast
import inspect
import re
import runpy
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

from coordinator.machine.machine import RunMachine
from coordinator.status_document import status
from docs.generate import PAGES, REFERENCE
from docs.generate.run_file import unit
from docs.generate.screens import with_screens
from lockstep.cli import app
from lockstep.exit_codes import MEANINGS
from lockstep.settings_file import read_settings
from node.status import NodeStatus
from protocol.errors import SettingsError
from protocol.ids import RunId
from protocol.limits import VOTE_SUM_MAX
from protocol.runfile import RunSpec, parse_run_file
from tests.docs.pages import DOCS, ROOT

# ---- generated pages


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name](), "run: python -m docs.generate"


def test_the_page_of_the_run_file_has_every_field() -> None:
    text = (REFERENCE / "run-file.md").read_text("utf-8")
    for path in fields(RunSpec()):
        assert f"{{#{path.replace('.', '-')}}}" in text, path


def test_every_whole_number_of_the_run_file_has_a_unit_or_none() -> None:
    without = {
        path
        for path, schema in schemas(RunSpec())
        if schema.get("type") == "integer" and not unit(path.rpartition(".")[2], schema)
    }
    assert without == {
        "lockstep",
        "seed",
        "algorithm.top_k",
        "rounds.stretch",
    }


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ("[rounds]\nquorum = 300", "quorum"),
        ("[membership]\nlease_ms = 3000", "lease_ms"),
        ("[retention]\nsnapshot_every = 2000", "snapshot_every"),
    ],
)
def test_the_rules_between_fields_are_those_of_the_page(broken: str, field: str) -> None:
    with pytest.raises(SettingsError, match=f"fields together: .*{field}"):
        parse_run_file(broken)
    assert field in (REFERENCE / "run-file.md").read_text("utf-8").partition("## At the top")[0]


def test_the_largest_sum_of_votes_is_told() -> None:
    assert f"{VOTE_SUM_MAX:,}" in (REFERENCE / "run-file.md").read_text("utf-8")


def fields(spec: Any, path: str = "") -> Iterator[str]:
    return (name for name, _ in schemas(spec, path))


def schemas(spec: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in type(spec).model_json_schema()["properties"].items():
        value = getattr(spec, name)
        if hasattr(value, "model_fields_set"):
            yield from schemas(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", schema


# ---- screens


@pytest.mark.parametrize("name", sorted(page.name for page in (DOCS / "guide").glob("*.md")))
def test_the_screens_of_a_guide_are_those_that_the_code_prints(name: str) -> None:
    text = (DOCS / "guide" / name).read_text("utf-8")
    assert text == with_screens(name, text), "run: python -m docs.generate"


# ---- exit codes, dependencies


def test_every_exit_code_is_explained_with_the_words_of_the_help() -> None:
    text = (DOCS / "guide" / "troubleshooting.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", text, re.MULTILINE))
    assert rows == {str(code.value): meaning for code, meaning in MEANINGS.items()}
    assert re.findall(r"^### Code (\d+)$", text, re.MULTILINE) == list(rows)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = chain(project["dependencies"], *project["optional-dependencies"].values())
    names = {re.split(r"[\s<>=!~;\[]", each)[0] for each in asked}
    page = DOCS / "develop" / "decisions" / "dependencies.md"
    reasons = re.findall(r"^\| ([\w-]+) \| (.+) \|$", page.read_text("utf-8"), re.MULTILINE)
    told_of = [name for name, reason in reasons if name not in ("package", "---") and reason]
    assert sorted(told_of) == sorted(names)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\s<>=!~;\[]", each)[0].lower() for each in asked}
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert names <= set(map(str.lower, pinned))


def test_the_status_page_names_the_fields_of_the_documents() -> None:
    text = (REFERENCE / "status.md").read_text("utf-8")
    coordinator = status(RunMachine(RunSpec(), RunId("0" * 32)), [], 0)
    documents = [coordinator, NodeStatus("0" * 32, "node").document()]
    for document in documents:
        for name, value in document.items():
            assert re.search(rf"`{name}[`.]", text), name
            for inner in value if isinstance(value, dict) else ():
                assert f"`{name}.{inner}`" in text, f"{name}.{inner}"


# ---- examples


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def rank_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun tells the only rank, in a directory of its own."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("default")  # torch's own, of what the examples call
@pytest.mark.usefixtures("rank_of_one")
@pytest.mark.parametrize("number", range(len(blocks("guide/optimizer.md", "python"))))
def test_each_example_of_the_optimizer_runs(number: int, tmp_path: Path) -> None:
    example = blocks("guide/optimizer.md", "python")[number]
    if "import accelerate" in example or "from accelerate" in example:
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    assert "DeMo(" in example
    (tmp_path / "example.py").write_text(example)
    ended = runpy.run_path(str(tmp_path / "example.py"))
    parameters = ended["model"].parameters()
    assert all(parameter.isfinite().all() for parameter in parameters)


def test_the_examples_of_the_optimizer_are_those_that_people_ask_for() -> None:
    text = (DOCS / "guide" / "optimizer.md").read_text("utf-8")
    for about in ("torchrun", "Schedulers", "accelerate", "FSDP2", "Checkpoints", "Mixed"):
        assert re.search(rf"^## .*{about}", text, re.MULTILINE)
    assert len(blocks("guide/optimizer.md", "python")) >= 9


def test_the_tables_of_the_optimizer_have_its_parameters_and_defaults() -> None:
    from lockstep import DeMo
    from node.exact.optimizer.group import DEFAULTS, DEMO_DEFAULTS

    text = (DOCS / "guide" / "optimizer.md").read_text("utf-8")
    parameters = list(inspect.signature(DeMo).parameters.values())[1:]
    defaults = {each.name: each.default for each in parameters}
    tables = text.split("### Without local steps")
    first, second = (dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", each, re.M)) for each in tables)
    assert first.keys() == defaults.keys() - (DEMO_DEFAULTS.keys() - DEFAULTS.keys())
    assert second.keys() == DEMO_DEFAULTS.keys()
    for told, meant in ((first, defaults | DEFAULTS), (second, DEMO_DEFAULTS)):
        for name, value in told.items():
            assert ast.literal_eval(value.strip("`")) == meant[name], name


def test_the_settings_file_of_the_guide_is_one(tmp_path: Path) -> None:
    (example,) = (each for each in blocks("guide/operate.md", "toml") if "[coordinator]" in each)
    (tmp_path / "settings.toml").write_text(example)
    command: Any = typer.main.get_command(app)
    commands_known = {
        name: {each.name: None for each in inner.params} for name, inner in command.commands.items()
    }
    read = read_settings(tmp_path / "settings.toml", commands_known)
    assert read["coordinator"]["listen"] == "0.0.0.0:50700"
