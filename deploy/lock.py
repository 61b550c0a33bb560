"""Writes the lock files of the images: every package that pip would install, with its version and
the SHA-256 of its file.

    python deploy/lock.py          or: make lock

pip itself resolves, in a dry run with a report, inside constraints.txt; nothing is installed. Run
it with the Python of the images (3.11) on the platform of the images (Linux on x86-64): other
platforms have other files. torch has a lock of its own, because its index is another one: that of
its build for CPUs. Its build for CUDA, which brings two gigabytes of NVIDIA's packages, is pinned
by version alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
HEAD = "# Made by `make lock` for Python 3.11 on Linux, x86-64; installed with --require-hashes.\n"
WITHOUT_DEPENDENCIES = "hivemind"
"""A package of which only a file is used, the libp2p daemon: its own dependencies are not needed,
and one of them has no wheel."""

LOCKS = ("coordinator", "node", "torch-cpu")


class Pinned(NamedTuple):
    """One package of a lock."""

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        """The requirement, as pip reads it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


def pinned(report: dict[str, Any]) -> list[Pinned]:
    """The packages of pip's report, by name; `ValueError` for one whose file has no SHA-256."""
    found = []
    for item in report["install"]:
        about = item["metadata"]
        sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
        if len(sha256) != 64:
            raise ValueError(
                f"{about['name']}: expected the SHA-256 of a file, found none: is it a checkout?"
            )
        found.append(Pinned(about["name"].lower().replace("_", "-"), about["version"], sha256))
    return sorted(found)


def locks(packages: dict[str, list[Pinned]]) -> dict[str, str]:
    """The text of each lock file. What the images of nodes share with that of the coordinator must
    be the same release; torch stands apart.
    """
    coordinator, node = packages["coordinator"], packages["node"]
    by_name = {each.name: each for each in node}
    for each in coordinator:
        if by_name.get(each.name, each) != each:
            raise ValueError(f"expected one release for all images, found {each} and {by_name}")
    torch = [each for each in node if each.name == "torch"]
    parts = (coordinator, [each for each in node if each.name != "torch"], torch)
    texts = (HEAD + "".join(each.line for each in part) for part in parts)
    return dict(zip(LOCKS, texts, strict=True))


def resolved(requirements: list[str], *options: str) -> dict[str, Any]:
    """The report of pip on what it would install."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        command += ["--constraint", str(ROOT / "constraints.txt"), *options, *requirements]
        subprocess.run(command, check=True, env=os.environ)
        return dict(json.loads(report.read_text()))


def main() -> int:
    """Write the files; the exit status."""
    parser = argparse.ArgumentParser(prog="python deploy/lock.py", description=__doc__)
    parser.add_argument(
        "--torch-index",
        default=TORCH_INDEX,
        help="index of torch's build for CPUs; empty: its wheel lies in PIP_FIND_LINKS",
    )
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own, extras = project["dependencies"], project["optional-dependencies"]
    extra = [*extras["node"], *extras["libp2p"]]
    index = ("--extra-index-url", arguments.torch_index) if arguments.torch_index else ()
    alone = [text for text in extra if text.startswith(WITHOUT_DEPENDENCIES)]
    others = [text for text in extra if text not in alone]
    node = pinned(resolved([*own, *others], *index)) + pinned(resolved(alone, "--no-deps"))
    packages = {"coordinator": pinned(resolved(own)), "node": sorted(node)}
    for name, text in locks(packages).items():
        (ROOT / "deploy" / f"requirements-{name}.lock").write_text(text)
        print(f"deploy/requirements-{name}.lock: {len(text.splitlines()) - 1} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
