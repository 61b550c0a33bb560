"""The size limits and prohibitions of the style, held by a test."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.support.sources import PACKAGES, ROOT, SOURCES, trees

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 400
POSITIONAL_MAX = 7
FOLDER_MODULES_MAX = 20
ATTRIBUTES_MAX = 15

RUN_AS_CODE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
RUN_AS_CODE_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load"}

SWALLOW_A_CANCELLATION = {"asyncio.wait_for"}
"""Before Python 3.12 it forgets a cancellation that meets a result; `asyncio.timeout` does not."""

RIDDLE = re.compile(r"^(Of|Whom|Whose|Who) |\bso (many|often|lately)\b(?! that)")
"""Prose without a noun: a docstring that begins with "Of", "so many" in place of a number."""

MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?!\.v1|\.json)(?:\.[A-Za-z_0-9]+)+)`")
"""A name of a module in a docstring, or of something in it; neither the service nor a file."""

SENTENCE = re.compile(r"[A-Za-z']{2,} [a-z]{2,}")
"""Two words in a row."""

STATES = {"catching up", "no session", "copied work", "less work", "most lack it"}
"""Values of two words, each with a type that names all of its kind."""

FOREIGN_WORDS = {
    "node/control/client.py": "gRPC tells a stream that broke off by its words alone",
    "node/data/hub.py": "a library tells what it lacks by its words alone",
    "lockstep/cli.py": "pathlib tells a missing home directory by its words alone",
    "coordinator/machine/rules/publishing.py": "the reason for a checkpoint is its wish",
    "lockstep/cluster/demo.py": "titles by algorithm, which are the keys",
    "lockstep/commands/service.py": "a unit is known as its own by its first words",
}
"""Modules that may compare a sentence, and why."""

COMPARES_TEXT = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "find"}

SHARED_NAMES = {
    "Admit",
    "Announced",
    "Blame",
    "Checkpoint",
    "Evict",
    "Head",
    "Member",
    "Needs",
    "Offered",
    "Refuse",
    "Settled",
    "SummerAdded",
    "Verdict",
    "Window",
    "Work",
}
"""Names of classes that still mean two things or three; none comes in, and one that is told apart
goes out."""

Node = TypeVar("Node", bound=ast.AST)


def nodes(*kinds: type[Node]) -> Iterator[tuple[str, Node]]:
    """Every node of these kinds, behind the path of its module."""
    for module, tree in trees().items():
        yield from ((module, node) for node in ast.walk(tree) if isinstance(node, kinds))


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Positional parameters, without the one that a method is called on."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def attributes(class_: ast.ClassDef) -> set[str]:
    """Names that the methods of a class assign to `self`."""
    return {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_a_module_keeps_the_limit_of_lines() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert not {path: count for path, count in lines.items() if count > MODULE_LINES_MAX}


def test_a_function_keeps_the_limits_of_lines_and_positional_parameters() -> None:
    too_large = []
    for module, function in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX or positional(function) > POSITIONAL_MAX:
            too_large.append(f"{module}: {function.name}: {lines} lines, {positional(function)}")
    assert not too_large


def test_a_class_keeps_the_limit_of_instance_attributes() -> None:
    counts = {
        f"{module}: {class_.name}": len(attributes(class_))
        for module, class_ in nodes(ast.ClassDef)
    }
    assert not {name: count for name, count in counts.items() if count > ATTRIBUTES_MAX}


def test_a_folder_holds_no_more_modules_than_one_can_survey() -> None:
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert not {str(folder): n for folder, n in modules.items() if n > FOLDER_MODULES_MAX}


def test_docstrings_have_nouns() -> None:
    texts = [
        (module, node.value.value.strip())
        for module, node in nodes(ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    assert texts
    assert not [f"{module}: {text[:60]}" for module, text in texts if RIDDLE.search(text)]


def test_docstrings_name_modules_that_exist() -> None:
    named = {
        (module, name)
        for module, node in nodes(ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for name in re.findall(MODULE, node.value.value)
    }
    assert named
    assert not [each for each in sorted(named) if not exists(each[1])]


def exists(name: str) -> bool:
    """Whether a dotted name is a package, a module, or begins with a module."""
    *folder, last = name.split(".")
    if (ROOT.joinpath(*folder, last) / "__init__.py").exists():
        return True
    parts = [*folder, last]
    return any(
        ROOT.joinpath(*parts[:depth]).with_suffix(".py").exists()
        for depth in range(2, len(parts) + 1)
    )


def test_each_public_name_of_a_class_has_one_meaning() -> None:
    counts = Counter(node.name for _, node in nodes(ast.ClassDef) if node.name[0] != "_")
    assert {name for name, count in counts.items() if count > 1} == SHARED_NAMES


def test_the_status_of_a_node_is_written_in_its_own_module() -> None:
    """Whatever happens is told to it (`node.status`)."""
    assert not [
        f"{module}:{node.lineno}"
        for module, node in nodes(ast.Attribute)
        if module.startswith("node/")
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value).split(".")[-1] in ("status", "_status")
    ]


def test_no_module_compares_sentences() -> None:
    """A state is a value, and sentences are made from it."""
    found = {
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, node in nodes(ast.Compare, ast.Call)
        if module not in FOREIGN_WORDS and any(map(is_sentence(module), compared(node)))
    }
    assert not found


def compared(node: ast.Compare | ast.Call) -> list[ast.expr]:
    """What a text is compared with."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    is_text = isinstance(node.func, ast.Attribute) and node.func.attr in COMPARES_TEXT
    return node.args if is_text else []


def is_sentence(module: str) -> Callable[[ast.expr], bool]:
    """Judges an expression of a module: its constants are told by their names too."""
    named = {
        target.id: node.value
        for node in trees()[module].body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def judge(expression: ast.expr) -> bool:
        if isinstance(expression, ast.Name):
            expression = named.get(expression.id, expression)
        return any(
            isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and SENTENCE.search(each.value)
            and each.value not in STATES
            for each in ast.walk(expression)
        )

    return judge


def test_nothing_runs_foreign_bytes_as_code() -> None:
    imported = {
        (module, name.partition(".")[0])
        for module, node in nodes(ast.Import, ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert not [each for each in sorted(imported) if each[1] in RUN_AS_CODE_MODULES]
    assert not [each for each in calls() if each[1] in RUN_AS_CODE_CALLS]


def test_nothing_may_swallow_a_cancellation() -> None:
    assert not [each for each in calls() if each[1] in SWALLOW_A_CANCELLATION]


def calls() -> list[tuple[str, str]]:
    """Every call: the path of its module, the name that is called."""
    return [
        (module, ast.unparse(node.func))
        for module, node in nodes(ast.Call)
        if isinstance(node.func, ast.Name | ast.Attribute)
    ]


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise `tests/coordinator` would shadow `coordinator`."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert not [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]


def test_there_is_something_to_judge() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(PACKAGES)
