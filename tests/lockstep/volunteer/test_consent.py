"""The question at the first join: what is shown, and when nobody is asked."""

import re
from pathlib import Path

import pytest

from lockstep.commands import join as joining
from lockstep.console import bytes_text
from lockstep.exit_codes import UsageError
from lockstep.volunteer.consent import CONSENT_NAME, ask_once, terms
from node.settings import NodeSettings
from protocol import wire_pb2 as wire
from protocol.ids import RunId
from protocol.planner.parameters import size_of
from protocol.run_info import RunInfo
from protocol.runfile import ModelSpec, RunSpec

INFO = RunInfo(RunSpec(name="winter"), RunId("12" * 16), b"k" * 32)
LINES = ["run: winter"]


def never(_: str) -> str:
    raise AssertionError("asked")


def test_the_terms_name_run_model_network_and_device() -> None:
    text = "\n".join(terms(INFO, "auto", 5_000_000))
    for words in (
        "run: winter (12121212), 2,000 steps",
        "parameters; data: lockstep-2026",
        "a day, half of it up, with 2 members; ",
        "never more than 5 MB",
        "device: the first GPU, else the CPU",
    ):
        assert words in text


def test_the_terms_tell_the_traffic_in_all_with_the_members_of_now() -> None:
    def network(members: int) -> str:
        return next(each for each in terms(INFO, "cpu", 0, members) if each.startswith("network"))

    alone = re.search(r"about (\S+) MB a day, .* with 2 members; (\S+) MB more", network(0))
    eight = re.search(r"about (\S+) GB a day, half of it up, with 8 members", network(8))
    assert alone
    assert eight
    assert alone[1] == alone[2]
    assert float(eight[1]) == pytest.approx(7 * float(alone[1]) / 1000, rel=0.01)


def test_the_terms_of_a_run_whose_nodes_mix_name_the_parameters_that_they_send() -> None:
    algorithm = {"name": "gossip-adam", "mixing": {"exchange": "float32", "mean_every": 50}}
    rounds = {"compute_ms": 8_640, "overlap": 1}  # ten thousand rounds a day
    spec = RunSpec.model_validate({"algorithm": algorithm, "rounds": rounds})
    size = 4 * size_of(spec.model).parameters
    (network,) = [
        line
        for line in terms(RunInfo(spec, INFO.run_id, b"k" * 32), "cpu", 0)
        if line.startswith("network")
    ]
    assert f"about {bytes_text(20_000 * size)} a day, half of it up" in network
    assert f"at every 50th step {bytes_text(size)} to and from each other member" in network


def test_a_model_whose_size_is_not_known_without_torch_is_named() -> None:
    spec = RunSpec(model=ModelSpec(type="bloom", config={}))
    lines = terms(RunInfo(spec, INFO.run_id, b"k" * 32), "cpu", 0)
    assert "model: bloom" in lines


@pytest.mark.parametrize(
    ("said", "agreed"), [("", True), ("y", True), ("YES ", True), ("n", False)]
)
def test_on_a_terminal_it_is_asked_once_and_the_answer_is_remembered(
    tmp_path: Path, said: str, agreed: bool
) -> None:
    place = tmp_path / "run"
    found = ask_once(place, LINES, yes=False, terminal=True, answer=lambda _: said)
    assert found is agreed
    assert (place / CONSENT_NAME).exists() is agreed
    if agreed:
        assert ask_once(place, LINES, yes=False, terminal=True, answer=never)
        assert ask_once(place, LINES, yes=False, terminal=False, answer=never)


def test_yes_agrees_without_a_question_and_shows_the_terms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask_once(tmp_path, LINES, yes=True, terminal=False, answer=never)
    assert "run: winter" in capsys.readouterr().err


def test_where_nobody_can_be_asked_the_error_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add --yes"):
        ask_once(tmp_path, LINES, yes=False, terminal=False, answer=never)
    assert not (tmp_path / CONSENT_NAME).exists()


def test_another_run_is_asked_about_again(tmp_path: Path) -> None:
    assert ask_once(tmp_path / "a", LINES, yes=True)
    with pytest.raises(UsageError):
        ask_once(tmp_path / "b", LINES, yes=False, terminal=False)


@pytest.mark.parametrize(
    ("only", "follows", "asked"), [(False, False, 1), (True, False, 0), (False, True, 0)]
)
def test_the_join_asks_in_the_home_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: bool, follows: bool, asked: int
) -> None:
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions
    from lockstep.volunteer.limits import Limits

    questions: list[Path] = []

    def refused(place: Path, lines: list[str], *, yes: bool) -> bool:
        questions.append(place)
        return False

    class BegunError(Exception):
        """The join has gone on."""

    def begun(*_: object) -> None:
        raise BegunError

    monkeypatch.setattr(joining, "first_word", lambda *_, **__: INFO)
    monkeypatch.setattr(joining, "ask_once", refused)
    monkeypatch.setattr(joining, "_measured", lambda settings, *_, **__: (settings, None))
    monkeypatch.setattr(joining, "knock", lambda *_: wire.CoordinatorMessage())
    monkeypatch.setattr(joining, "somebody_is_there", lambda: True)
    monkeypatch.setattr(joining, "remember", begun)  # the first thing that a join keeps
    wishes = joining.Wishes(Limits(), 0)
    options = ServeOptions(tmp_path, "127.0.0.1:0", follows)
    try:
        joining.join(NodeSettings("h:1", tmp_path), options, Home(tmp_path, only=only), wishes)
    except BegunError:
        assert not questions
    assert len(questions) == asked
