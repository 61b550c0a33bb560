"""The size limits and prohibitions of the style, held by a test."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "coordinator", "node", "lockstep")
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 400
POSITIONAL_MAX = 5
FOLDER_MODULES_MAX = 15
ATTRIBUTES_MAX = 15

SOURCES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
]

RIDDLE = re.compile(r"^(Of|Whom|Whose|Who) |\bso (many|often|lately)\b(?! that)")
"""Prose without a noun: a docstring that begins with "Of", "so many" in place of a number."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def positional(function: Function) -> int:
    """Positional parameters, without the one that a method is called on."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_keeps_the_size_limits(path: Path) -> None:
    text = path.read_text()
    too_large = (
        [f"module: {lines} lines"] if (lines := len(text.splitlines())) > MODULE_LINES_MAX else []
    )
    for function in functions(ast.parse(text)):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            too_large.append(f"{function.name}: {lines} lines")
        if (count := positional(function)) > POSITIONAL_MAX:
            too_large.append(f"{function.name}: {count} positional parameters")
    assert not too_large


def attributes(class_: ast.ClassDef) -> set[str]:
    """Names that the methods of a class assign to `self`."""
    return {
        target.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for target in [node]
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_class_keeps_the_limit_of_instance_attributes(path: Path) -> None:
    classes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    counts = {class_.name: len(attributes(class_)) for class_ in classes}
    assert not {name: count for name, count in counts.items() if count > ATTRIBUTES_MAX}


def test_a_folder_holds_no_more_modules_than_one_can_survey() -> None:
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert not {str(folder): n for folder, n in modules.items() if n > FOLDER_MODULES_MAX}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_have_nouns(path: Path) -> None:
    tree = ast.parse(path.read_text())
    texts = [
        node.value.value.strip()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    riddles = [text[:60] for text in texts if RIDDLE.search(text)]
    assert not riddles


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_runs_foreign_bytes_as_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_may_swallow_a_cancellation(path: Path) -> None:
    # Before Python 3.12 `asyncio.wait_for` forgets a cancellation that meets a result;
    # `asyncio.timeout` does not.
    called = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    assert "asyncio.wait_for" not in called


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise `tests/coordinator` would shadow `coordinator`."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert not [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]


def test_there_is_something_to_judge() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(PACKAGES)
