"""An auditor as its operator meets it: an alarm stays visible, and ends with code 9."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry, generate_latest

from lockstep.audit import process as auditing
from lockstep.audit.metrics import COUNTERS, GAUGES, AuditCollector
from lockstep.audit.process import AuditorProcess
from lockstep.audit.settings import AuditorSettings
from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.own_packages import how_to_add
from node.relay.settings import RelaySettings
from tests.lockstep.test_cli import without_torch

ALARM = "the first difference is in round 5: the replay leads to another state"


async def test_a_difference_makes_it_unready_and_shows_in_status_and_metrics(
    tmp_path: Path,
) -> None:
    settings = AuditorSettings(RelaySettings("127.0.0.1:1", tmp_path))
    process = AuditorProcess(settings, Ed25519PrivateKey.generate(), "test")
    try:
        assert (process.unready(), process.alarm, process.status()["audit"]) == ("starts", "", {})
        document: dict[str, Any] = dict.fromkeys((*GAUGES, *COUNTERS), 1) | {"halted": "why"}
        follower = SimpleNamespace(alarm=ALARM, document=lambda: document)
        process._follower = follower  # type: ignore[assignment]
        assert process.unready() == process.alarm == ALARM
        assert process.status()["audit"] == document
        values = {
            sample.name: sample.value
            for family in process.registry.collect()
            for sample in family.samples
        }
        assert values["lockstep_auditor_rounds_different"] == 1
        assert values["lockstep_auditor_halted"] == 1
        assert values["lockstep_auditor_payloads_ignored_total"] == 1
    finally:
        await process.stop()


@pytest.mark.parametrize(("alarm", "code"), [("", ExitCode.OK), (ALARM, ExitCode.REFUSED)])
def test_an_auditor_that_found_a_difference_ends_with_9_and_names_it(
    alarm: str,
    code: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def ended(settings: AuditorSettings, *_: object) -> tuple[str, str]:
        assert settings.relay.disk == 5_000_000
        return alarm, "this auditor was stopped by its owner; audited up to round 9"

    run = SimpleNamespace(run_id="ab" * 16, spec=SimpleNamespace(name="tiny"))
    monkeypatch.setattr("lockstep.service.home.first_word", lambda *_, **__: run)
    monkeypatch.setattr(auditing, "_audit", ended)
    place = str(tmp_path / "auditor")
    assert main(["auditor", "127.0.0.1:1", "--directory", place, "--disk", "5000000"]) == code
    said = capsys.readouterr().err
    assert "audited up to round 9" in said
    assert (f"error: {ALARM}" in said) == bool(alarm)


def test_a_token_of_the_link_is_shown_to_the_coordinator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[RelaySettings] = []
    monkeypatch.setattr(auditing, "audit", lambda settings, *_: told.append(settings.relay))
    link = f"lockstep://127.0.0.1:1/{'ab' * 16}"
    place = ["--directory", str(tmp_path)]
    assert main(["auditor", f"{link}?token=s3cret", *place]) == ExitCode.OK
    assert main(["auditor", link, "--token", "s3cret", *place]) == ExitCode.OK
    assert [(relay.coordinator, relay.token) for relay in told] == [(link, "s3cret")] * 2


def test_without_torch_it_says_what_to_install() -> None:
    done = without_torch("auditor", "127.0.0.1:1")
    assert done.returncode == ExitCode.USAGE
    assert "this command needs" in done.stderr
    assert how_to_add("node") in done.stderr


def test_its_metrics_count_what_was_audited_and_found() -> None:
    document = {
        "round": 90,
        "work": {"audits": 12, "round": 88, "verdicts": 1, "suspects": ["a", "b"], "words": "x"},
        "copies": {"payloads": 360, "alike": [{}], "verdicts": 2},
    }
    registry = CollectorRegistry()
    registry.register(AuditCollector(lambda: document))
    shown = generate_latest(registry).decode()
    for line in (
        "lockstep_auditor_work_audits_total 12.0",
        "lockstep_auditor_work_round 88.0",
        "lockstep_auditor_work_verdicts_total 1.0",
        "lockstep_auditor_work_suspects 2.0",
        "lockstep_auditor_copies_payloads_total 360.0",
        "lockstep_auditor_copies_alike 1.0",
        "lockstep_auditor_copies_verdicts_total 2.0",
    ):
        assert f"\n{line}\n" in shown
    assert "work_seconds" not in shown, "what is unknown is not shown"
