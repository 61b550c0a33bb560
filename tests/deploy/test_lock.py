"""The lock files of the images: made from pip's own report, whole, and those of constraints.txt."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy.lock import HEAD, LOCKS, locks, pinned

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"([a-z0-9.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
TEXTS = {name: (ROOT / f"deploy/requirements-{name}.lock").read_text() for name in LOCKS}
PINS = {
    name: {found[1]: found[2] for line in text.splitlines()[1:] if (found := LINE.fullmatch(line))}
    for name, text in TEXTS.items()
}


def item(name: str, version: str = "1.0", sha256: str = "ab" * 32) -> dict[str, Any]:
    """One row of pip's report."""
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"url": "https://example", "archive_info": {"hashes": {"sha256": sha256}}},
    }


def test_a_lock_has_each_package_of_the_report_with_its_hash_and_torch_apart() -> None:
    own = pinned({"install": [item("Beta_Two"), item("alpha")]})
    node = pinned({"install": [item("torch", "2.0+cpu"), item("alpha"), item("beta-two")]})
    texts = locks({"coordinator": own, "node": node})
    one, two = (f"{name}==1.0 --hash=sha256:{'ab' * 32}\n" for name in ("alpha", "beta-two"))
    assert texts["coordinator"] == texts["node"] == HEAD + one + two
    assert texts["torch-cpu"] == HEAD + f"torch==2.0+cpu --hash=sha256:{'ab' * 32}\n"


def test_a_package_without_a_file_and_two_releases_of_one_are_refused() -> None:
    checkout = item("alpha")
    checkout["download_info"] = {"url": "https://example", "vcs_info": {}}
    with pytest.raises(ValueError, match="alpha: expected the SHA-256"):
        pinned({"install": [checkout]})
    with pytest.raises(ValueError, match="one release"):
        locks(
            {
                "coordinator": pinned({"install": [item("alpha", "2")]}),
                "node": pinned({"install": [item("alpha", "1")]}),
            }
        )


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_pins_a_version_and_a_hash(name: str) -> None:
    head, *lines = TEXTS[name].splitlines()
    assert head + "\n" == HEAD
    assert lines
    assert all(LINE.fullmatch(line) for line in lines)


@pytest.mark.parametrize("name", LOCKS)
def test_the_releases_are_those_of_the_constraints(name: str) -> None:
    text = (ROOT / "constraints.txt").read_text()
    constrained = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)$", text, re.MULTILINE))
    differing = {
        package: version
        for package, version in PINS[name].items()
        if constrained.get(package, version) != version.partition("+")[0]
    }
    assert not differing, "run: make lock"


def test_nothing_that_the_images_need_is_missing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = re.compile(r"[A-Za-z0-9._-]+")
    own = {found[0] for text in project["dependencies"] if (found := names.match(text))}
    extras = project["optional-dependencies"]
    extra = [*extras["node"], *extras["libp2p"]]
    needed = {found[0] for text in extra if (found := names.match(text))}
    assert own <= PINS["coordinator"].keys(), "run: make lock"
    assert PINS["coordinator"].items() <= PINS["node"].items()
    assert needed <= PINS["node"].keys() | PINS["torch-cpu"].keys(), "run: make lock"


@pytest.mark.parametrize("image", ["coordinator", "node"])
def test_an_image_installs_from_its_lock_by_hash_alone(image: str) -> None:
    text = (ROOT / f"deploy/{image}.Dockerfile").read_text()
    assert "ARG LOCKED=yes" in text
    assert f"--requirement requirements-{image}.lock" in text
    installs = re.findall(r"([^;&]*)--requirement requirements-\S+\.lock", text)
    assert len(installs) == (1 if image == "coordinator" else 2)
    assert all("--require-hashes --no-deps --only-binary :all:" in each for each in installs)
