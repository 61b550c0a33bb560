"""Asking a coordinator over real gRPC, and what a person sees of the answer."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from rich.console import Console

from lockstep.commands.status import ask, render, status
from lockstep.console import output
from protocol import wire_pb2, wire_pb2_grpc
from protocol.errors import RemoteProtocolError, SettingsError, UnavailableError, VersionError
from tests.lockstep.shared import printed

DOCUMENT: dict[str, Any] = {
    "run_id": "0123456789abcdef" * 2,
    "name": "first-run-with-a-name-as-long-as-the-run-file-allows-it-to-be-62",
    "round": 41,
    "phase": "exchanging",
    "reason": "3 of 4 members announced; "
    "waiting for node-3 until publish_by in 812 ms, then it is late",
    "members": [
        {
            "peer_id": f"{number:032x}",
            "name": f"a volunteer's rather long machine name {number}",
            "state": "catching up",
            "reason": "its state holds round 12, the log 40",
            "round": 12,
            "strikes": number,
            "samples_per_second": 12.345,
        }
        for number in range(3)
    ],
    "steps": {"committed": 40, "skipped": 1, "total": 2000},
    "loss": 3.14159,
    "last_commits": [
        {
            "round": number,
            "step": number,
            "contributors": ["a", "b"],
            "loss": 3.5,
            "state_digest": "e59463a125c7b231",
            "digest_reports": 3,
            "digests_agree": number != 39,
        }
        for number in range(40, 30, -1)
    ],
    "digests": {"agreed": True, "rounds_checked": 40, "last": "e59463a125c7b231"},
    "traffic": {"payload_bytes": 123456789, "payloads": 120},
    "data": {"samples_trained": 3840, "samples_lost": 0},
}


class FakeCoordinator(wire_pb2_grpc.CoordinatorServicer):
    def __init__(self) -> None:
        self.reply = json.dumps(DOCUMENT).encode()

    def GetStatus(
        self, request: wire_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> wire_pb2.Status:
        return wire_pb2.Status(json=self.reply)


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


def serving(add: Any) -> Iterator[str]:
    with ThreadPoolExecutor(max_workers=2) as threads:
        server = grpc.server(threads)
        add(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def address(coordinator: FakeCoordinator) -> Iterator[str]:
    yield from serving(
        lambda server: wire_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)
    )


@pytest.fixture
def other_server() -> Iterator[str]:
    yield from serving(lambda server: None)


def test_the_document_arrives_unchanged(address: str) -> None:
    assert ask(address) == DOCUMENT


def test_a_link_of_another_run_is_told_apart(address: str) -> None:
    with pytest.raises(SettingsError, match=f"expected run {'f' * 32}, .* found run "):
        ask(f"lockstep://{address}/{'f' * 32}")


def test_json_on_standard_output_is_the_document_and_nothing_else(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status(f"lockstep://{address}/", "-")
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_an_unreachable_coordinator_is_named_with_what_was_tried() -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1: .* refuses port 1"):
        ask("127.0.0.1:1", timeout_s=2)


def test_another_server_at_that_port_is_told_apart(other_server: str) -> None:
    with pytest.raises(VersionError, match="another gRPC server"):
        ask(other_server)


@pytest.mark.parametrize("reply", [b"", b"{", b"[]", b"\xff"])
def test_an_answer_that_is_no_status_is_a_remote_protocol_error(
    reply: bytes, address: str, coordinator: FakeCoordinator
) -> None:
    coordinator.reply = reply
    with pytest.raises(RemoteProtocolError, match=address):
        ask(address)


def test_an_invalid_address_is_a_settings_error() -> None:
    with pytest.raises(SettingsError):
        status("http://somewhere", None)


def test_the_tables_fit_80_columns_and_say_what_matters() -> None:
    console = Console(width=80, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for part in render(DOCUMENT):
            console.print(part)
        text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for fact in ("40 of 2000", "3.1416", "123 MB", "e59463a125c7b231", "DIFFERENT", "3 members"):
        assert fact in text
    assert text.index(" 36 ") < text.index(" 40 ", text.index("last commits"))
    assert " 35 " not in text


def test_an_empty_document_of_a_young_run_is_shown_too() -> None:
    assert len(render({"run_id": "0" * 32, "members": [], "last_commits": []})) == 1


HOSTILE = "\x1b]0;owned\x07\x1b[2J\n"


@pytest.mark.parametrize(("reports", "said"), [(0, False), (1, False), (2, True)])
def test_one_report_of_a_state_is_equal_to_nobody(reports: int, said: bool) -> None:
    commit = DOCUMENT["last_commits"][0]
    document = DOCUMENT | {"last_commits": [commit | {"digest_reports": reports}], "digests": {}}
    assert ("equal" in "".join(map(printed, render(document)))) is said


def test_names_of_strangers_are_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[/x]", "[link=https://example.org]me[/link]", HOSTILE, ":bomb:"]
    members = [{"peer_id": "ab" * 16, "name": name, "reason": name} for name in names]
    for part in render(DOCUMENT | {"members": members, "reason": HOSTILE}):
        output.print(part)
    shown = capsys.readouterr().out
    assert "[/x]" in shown
    assert "[link=" in shown
    assert ":bomb:" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize("part", [{"members": [7]}, {"steps": 3}, {"last_commits": [{}]}])
def test_a_document_of_another_shape_is_no_bug(
    address: str, coordinator: FakeCoordinator, part: dict[str, Any]
) -> None:
    coordinator.reply = json.dumps(DOCUMENT | part).encode()
    with pytest.raises(RemoteProtocolError, match="status of the form of this release"):
        status(address, None)


def shown(document: dict[str, Any]) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        for part in render(document):
            console.print(part)
    return capture.get()


def test_before_the_first_round_the_status_shows_no_number_and_relays_are_counted() -> None:
    text = shown({**DOCUMENT, "round": -1, "phase": "waiting", "relays": [{"peer_id": "ab"}]})
    assert "-1" not in text
    assert re.search(r"round +waiting", text)
    assert re.search(r"relays +1", text)
    both = [{"peer_id": "ab", "name": "relay"}, {"peer_id": "cd", "name": "auditor"}]
    adding = [{"peer_id": name, "adds": name != "c"} for name in "abc"]
    assert re.search(r"relays +3 \(2 that add\) *\n", shown({**DOCUMENT, "relays": adding}))
    assert re.search(r"relays +2 \(1 that adds\) *\n", shown({**DOCUMENT, "relays": adding[1:]}))
    assert re.search(r"relays +1, 1 auditor *\n", shown({**DOCUMENT, "relays": both}))
    assert re.search(r"relays +1 auditor *\n", shown({**DOCUMENT, "relays": both[1:]}))
    done = {"newest": [{"given_s": 1, "text": "vouch for ab"}]}
    assert re.search(r"operator +vouch for ab", shown({**DOCUMENT, "operator": done}))


def test_the_newest_checkpoint_and_its_confirmation_are_shown() -> None:
    made = {"confirmed_by": "cd" * 16}
    where = "the model after round 7: checkpoints/7-ab in the coordinator's directory"
    text = shown({**DOCUMENT, "checkpoint": {"where": where, "made": [made], "next": ""}})
    assert "checkpoints/7-ab" in text
    assert "confirmed by cdcdcdcd" in text
    here = {"peer_id": "cd" * 16, "name": "attic", "standing": "fresh", "state": "ready"}
    named = {"checkpoint": {"where": where, "made": [made]}, "members": [here]}
    text = shown({**DOCUMENT, **named})
    assert "confirmed by attic" in text
    assert "ready (fresh)" in text
    lost = {"demoted": [{"peer_id": "cd" * 16, "reason": "copied work"}]}
    assert "attic: copied work" in shown({**DOCUMENT, **named, "audit": lost})


def test_the_validation_loss_is_shown_with_its_round_and_its_member() -> None:
    measured = {"loss": 2.5, "round": 39, "peer_id": "ab" * 16, "name": "attic", "next": ""}

    def shown(**changes: object) -> str:
        document = DOCUMENT | {"validation": measured | changes}
        return " ".join(" ".join(map(printed, render(document))).split())

    assert "validation 2.5000 after round 39, measured by attic" in shown()
    assert "measured by abababab; on other data than before" in shown(name="", other_data=True)
    waiting = "abababab measures the state after round 0"
    assert f"validation {waiting}" in shown(loss=None, round=None, next=waiting)


@pytest.mark.parametrize(
    ("rule", "words"), [("token", "nodes with a token"), ("list", "nodes on its operator's list")]
)
def test_a_run_that_does_not_take_everybody_says_so(rule: str, words: str) -> None:
    shown = "".join(map(printed, render(DOCUMENT | {"operator": {"admission": rule}})))
    assert words in shown
    assert "admits" not in "".join(
        map(printed, render(DOCUMENT | {"operator": {"admission": "open"}}))
    )


def test_a_node_without_a_name_is_told_once() -> None:
    nameless = {"peer_id": "4600d74e" + "0" * 24, "name": "4600d74e", "state": "ready"}
    assert shown({**DOCUMENT, "members": [nameless]}).count("4600d74e") == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"samples_trained": 3840, "samples_left_out": 0, "samples_lost": 0}, "3,840 used"),
        (
            {"samples_trained": 10, "samples_left_out": 7, "samples_lost": 0},
            "10 used, 7 given back",
        ),
        (
            {"samples_trained": 10, "samples_left_out": 7, "samples_lost": 2},
            "10 used, 5 given back, 2 lost",
        ),
    ],
)
def test_samples_that_returned_are_not_called_lost(data: dict[str, int], words: str) -> None:
    text = "\n".join(printed(part) for part in render(DOCUMENT | {"data": data}))
    line = next(line for line in text.splitlines() if line.startswith("samples"))
    assert line.split(maxsplit=1)[1].strip() == words


def test_what_a_member_costs_the_others_goes_before_its_state() -> None:
    member = {"peer_id": "a" * 32, "reason": "computes"}
    costly = member | {"remark": "tardy"}
    assert "computes" in shown({**DOCUMENT, "members": [member]})
    found = shown({**DOCUMENT, "members": [costly]})
    assert "tardy" in found
    assert "computes" not in found


def told(document: dict[str, Any]) -> str:
    return " ".join("\n".join(map(printed, render(document))).split())


def test_what_is_wrong_stands_first() -> None:
    alarm = "auditors 3b1c and 9f0a came to different results"
    wrong = DOCUMENT | {"audit": {"alarm": alarm}, "digests": {"agreed": False}}
    assert told(wrong).startswith(f"problem {alarm}; replicas were not equal")
    assert "problem" not in told(DOCUMENT)
    lost = told(DOCUMENT | {"state_lost": "nobody has it", "reason": "nobody has it"})
    assert lost.startswith("problem")
    assert lost.count("nobody has it") == 1, "it is said once"
