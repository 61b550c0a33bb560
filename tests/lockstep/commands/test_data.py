"""`lockstep data prepare` says what it has left out."""

from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.exit_codes import ExitCode


def test_what_was_passed_over_is_listed_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("one.txt", "two.txt", "three.txt"):
        (source / name).write_text(f"the text of {name}\n" * 30)
    for number in range(30):
        (source / f"picture-{number:02}.png").write_bytes(b"\x89PNG\0\0")
    out = str(tmp_path / "out")
    assert main(["data", "prepare", str(source), "--out", out]) == ExitCode.OK
    told = capsys.readouterr()
    assert "'picture-00.png': binary (it holds NUL bytes)" in told.err
    assert told.err.count("binary") == 20
    assert "remarks: 30, 10 of them not shown" in told.err
    assert "manifest_sha256" in told.out


def test_a_named_file_without_text_is_a_documented_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise.bin"
    noise.write_bytes(bytes(range(256)) * 400)
    assert main(["data", "prepare", str(noise), "--out", str(tmp_path / "out")]) == ExitCode.DATA
    assert "noise.bin: expected text, found binary" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_published_data_come_with_the_lines_of_the_run_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"text {number}\n" * 30)
    out, url = str(tmp_path / "out"), f"file://{tmp_path}/published"
    assert main(["data", "prepare", str(tmp_path / "*.txt"), "--out", out]) == ExitCode.OK
    digest = capsys.readouterr().out.rpartition("manifest_sha256: ")[2].strip()
    assert main(["data", "publish", out, url]) == ExitCode.OK
    told = capsys.readouterr().out
    assert f'url = "https://..."\nmanifest_sha256 = "{digest}"' in told
    assert (tmp_path / "published" / "manifest.json").is_file()
