"""Data sets of the hub: what can be named, and what failures say."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from node.data.documents import Remarks, documents
from node.data.hub import HubSource
from protocol.errors import DataError


def _hub(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def _fails(problem: str) -> Any:
    def load(*_: object, **__: object) -> Iterator[dict[str, str]]:
        raise ValueError(problem)

    return load


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ("datasets:tales", HubSource("tales")),
        ("datasets:a/tales:test", HubSource("a/tales", split="test")),
        ("datasets:a/tales:test:story", HubSource("a/tales", split="test", column="story")),
        ("datasets:a/tales@v2:config=en", HubSource("a/tales", "v2", "en")),
        (
            "datasets:a/tales:config=en:column=story:split=test:revision=0f3a",
            HubSource("a/tales", "0f3a", "en", "test", "story"),
        ),
    ],
)
def test_every_part_of_a_data_set_can_be_named(spec: str, source: HubSource) -> None:
    assert HubSource.parse(spec) == source


@pytest.mark.parametrize(
    "spec",
    [
        "datasets:",
        "datasets:a:b:c:d",
        "datasets:a:colour=red",
        "datasets:a:config=",
        "datasets:a@1:revision=2",
    ],
)
def test_a_name_with_other_parts_is_refused_with_the_right_form(spec: str) -> None:
    with pytest.raises(DataError, match=r"expected"):
        HubSource.parse(spec)


def test_a_data_set_gives_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(*names: str, **options: Any) -> list[dict[str, Any]]:
        calls.append((names, options))
        return [{"story": "once"}, {"story": None}, {"story": "upon"}]

    _hub(monkeypatch, load)
    remarks = Remarks()
    found = list(documents(["datasets:somebody/tales@v2:test:story:config=en"], remarks))
    assert found == [("somebody/tales/test/0", "once"), ("somebody/tales/test/2", "upon")]
    assert calls == [
        (("somebody/tales", "en"), {"split": "test", "revision": "v2", "streaming": True})
    ]
    assert [name for name, _ in remarks.shown] == ["somebody/tales/test/1"]


def test_a_data_set_without_a_revision_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, lambda *_, **__: [{"text": "once"}])
    remarks = Remarks()
    assert len(list(documents(["datasets:tales"], remarks))) == 1
    assert "@REVISION" in remarks.shown[0][1]


def test_a_data_set_without_the_column_says_which_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _hub(monkeypatch, lambda *_, **__: [{"story": "once", "author": "me"}])
    with pytest.raises(DataError, match=r"expected a column 'text', found author, story"):
        list(documents(["datasets:tales"]))


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("Config name is missing. Please pick one among the available configs: ['en']", "config="),
        ("Dataset 'x' is a gated dataset on the Hub. You must be authenticated", "HF_TOKEN"),
        ("401 Client Error", "HF_TOKEN"),
        ("Unknown split \"train\". Should be one of ['test'].", "split="),
    ],
)
def test_a_failure_that_a_person_can_mend_says_how(
    monkeypatch: pytest.MonkeyPatch, problem: str, remedy: str
) -> None:
    _hub(monkeypatch, _fails(problem))
    with pytest.raises(DataError) as error:
        list(documents(["datasets:tales"]))
    assert problem in str(error.value)
    assert remedy in str(error.value)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, _fails("no route\nto host"))
    with pytest.raises(DataError, match=r"datasets:tales: cannot be read: no route to host$"):
        list(documents(["datasets:tales"]))


def test_without_the_datasets_package_the_command_line_can_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match="datasets"):
        list(documents(["datasets:tales"]))
