"""The command as a person or a script meets it: one clear line, a documented code, quick help, no
torch.
"""

import json
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep import own_packages
from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.own_packages import NODE_EXTRA
from lockstep.run_file import run_file_text
from protocol.runfile import RunSpec

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import sys
from lockstep.cli import main
from lockstep.own_packages import NODE_EXTRA
for name in NODE_EXTRA:
    sys.modules[name] = None
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(run_file_text(RunSpec()))
    return path


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error that is neither a log record nor about the run's model."""
    told = capsys.readouterr().err.splitlines()
    lines = [line for line in told if " INFO " not in line and not line.startswith("model: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_ctrl_c_ends_a_command_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.commands.init.chosen", interrupt)
    assert main(["init", str(tmp_path / "run.toml")]) == ExitCode.INTERRUPTED
    assert error_line(capsys) == "error: interrupted"


def test_an_account_without_a_home_is_told_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert main(["me"]) == ExitCode.SETTINGS
    assert "set HOME" in error_line(capsys)


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["no-such-command"], ["join"], ["init", "--no-such-flag"]],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert "--help" in error_line(capsys)


@pytest.mark.parametrize(
    "arguments",
    [["--threads", "-1"], ["--upload-limit", "1MB"], ["--device", "tpu"], ["--name", "Zo\udceb"]],
    ids=["threads", "upload", "device", "name"],
)
def test_a_wrong_value_ends_with_3_and_names_the_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join", "127.0.0.1:1", *arguments]) == ExitCode.SETTINGS
    assert arguments[0].strip("-") in error_line(capsys)


def test_a_wrong_value_is_told_with_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "X", "--duty-cycle", "0"]) == ExitCode.SETTINGS
    assert "greater than or equal to 1, found '0' (see" in error_line(capsys)
    assert main(["join", "X", "--threads", "x" * 999]) == ExitCode.SETTINGS
    assert len(error_line(capsys)) < 400


def test_a_command_line_without_its_address_points_to_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["join"]) == ExitCode.USAGE
    assert "join --help`)" in error_line(capsys)


def test_data_that_is_not_there_is_named_before_torch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from lockstep.cli import main\n"
        "code = main(sys.argv[1:]); sys.exit(100 if 'torch' in sys.modules else code)"
    )
    missing = ["--data", str(tmp_path / "none"), "--directory", str(tmp_path / "node")]
    done = subprocess.run([sys.executable, "-c", code, "join", "127.0.0.1:1", *missing])
    assert done.returncode == ExitCode.DATA


def test_a_wrong_run_file_names_the_field_what_was_expected_and_what_was_found(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text(run_file.read_text().replace("top_k = 192", "top_k = 5000"))
    assert main(["coordinator", str(run_file)]) == ExitCode.SETTINGS
    line = error_line(capsys)
    assert "algorithm.top_k" in line
    assert "4096" in line
    assert "5000" in line


def test_a_run_file_of_another_version_ends_with_5(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text(run_file.read_text().replace("lockstep = 1", "lockstep = 99"))
    assert main(["coordinator", str(run_file)]) == ExitCode.VERSION
    assert "99" in error_line(capsys)


def test_a_missing_run_file_is_an_error_that_names_lockstep_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coordinator", str(tmp_path / "none.toml")]) == ExitCode.SETTINGS
    assert "lockstep init" in error_line(capsys)


@pytest.mark.parametrize("port", ["--listen", "--admin"])
def test_a_port_in_use_ends_with_7_and_is_named(
    port: str, run_file: Path, taken_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    free = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0"} | {port: taken_address}
    flags = [word for flag in free.items() for word in flag]
    assert main(["coordinator", str(run_file), *flags]) == ExitCode.PORT_IN_USE
    line = error_line(capsys)
    assert taken_address in line
    assert port in line


@pytest.mark.parametrize("command", ["status", "join"])
def test_an_unreachable_coordinator_ends_with_4_and_says_what_was_tried(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.service.contact.PATIENCE_S", 0.2)
    place = ["--directory", str(tmp_path)] if command == "join" else []
    assert main([command, "127.0.0.1:1", *place]) == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in error_line(capsys)


def test_a_bug_ends_with_1_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("lockstep.commands.status.status", broken)
    assert main(["status", "127.0.0.1:1"]) == ExitCode.BUG
    assert "ZeroDivisionError: a b" in error_line(capsys)
    assert main(["--debug", "status", "127.0.0.1:1"]) == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_ends_with_6(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("node.system.files.tempfile.mkstemp", full)
    assert main(["init", "--defaults", str(run_file.with_name("new.toml"))]) == ExitCode.STORAGE
    assert "full" in error_line(capsys)


def test_init_writes_a_file_that_the_coordinator_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.toml"
    assert main(["init", "--defaults", str(path)]) == ExitCode.OK
    assert str(path) in capsys.readouterr().out
    assert main(["init", "--defaults", str(path)]) == ExitCode.USAGE
    assert "already exists" in error_line(capsys)


def test_data_prepare_turns_text_into_shards_with_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(f"document {number}\n" * 50)
    assert (
        main(["data", "prepare", str(tmp_path / "text"), "--out", str(tmp_path / "corpus")])
        == ExitCode.OK
    )
    printed = capsys.readouterr().out
    assert "train: " in printed
    assert "manifest_sha256: " in printed
    assert (
        json.loads((tmp_path / "corpus" / "manifest.json").read_bytes())["vocabulary_size"] == 257
    )


def test_missing_data_ends_with_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["data", "prepare", str(tmp_path / "nothing"), "--out", str(tmp_path / "corpus")])
        == ExitCode.DATA
    )
    assert "nothing" in capsys.readouterr().err


def test_a_command_that_needs_no_torch_runs_without_it(tmp_path: Path) -> None:
    assert without_torch("--help").returncode == ExitCode.OK
    assert without_torch("init", "--defaults", str(tmp_path / "run.toml")).returncode == ExitCode.OK
    assert without_torch("status", "127.0.0.1:1").returncode == ExitCode.UNREACHABLE
    bad_port = without_torch(
        "coordinator", str(tmp_path / "run.toml"), "--listen", "127.0.0.1:70000"
    )
    assert bad_port.returncode == ExitCode.SETTINGS, bad_port.stderr


def test_the_packages_of_the_node_extra_are_those_that_the_command_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = project["optional-dependencies"]["node"]
    assert {re.split("[<>=]", name)[0] for name in required} == NODE_EXTRA


@pytest.mark.parametrize("package", sorted(NODE_EXTRA))
def test_each_missing_package_of_the_extra_is_named_with_the_way_to_it(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.inner")

    monkeypatch.setattr("lockstep.commands.status.status", missing)
    assert main(["status", "127.0.0.1:1"]) == ExitCode.USAGE
    assert f"this command needs {package}: `make setup` in {ROOT}" in error_line(capsys)


def test_away_from_a_checkout_the_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_packages, "CHECKOUT", tmp_path)
    assert own_packages.how_to_add("node").startswith("pip install 'WHEEL[node]'")


@pytest.mark.parametrize("arguments", [("join", "127.0.0.1:1"), ("demo",), ("generate", "nowhere")])
def test_a_command_that_needs_torch_says_how_to_get_it(arguments: tuple[str, ...]) -> None:
    done = without_torch(*arguments)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "`make setup` in" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_loads_nothing_heavy_and_lists_the_exit_codes() -> None:
    heavy = "sorted({'torch', 'grpc', 'aiohttp', 'pydantic'} & set(sys.modules))"
    code = f"import sys; from lockstep.cli import main; main(['--help']); print({heavy})"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert printed.rstrip().endswith("[]")
    assert "130" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"lockstep {lockstep.__version__}\n"


def test_the_package_has_no_other_lazy_names() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        lockstep.nonsense  # noqa: B018
