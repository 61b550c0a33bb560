"""What the compose file promises, read without an engine."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from lockstep.audit.process import LAST_COMMIT_S
from lockstep.cli import app
from lockstep.service.descriptors import RESERVE
from lockstep.wan.profiles import read_profiles
from node.relay.process import DRAIN_S, GOODBYE_S
from node.transports.grpc_transport import PIPES_MAX
from protocol.limits import CONNECTIONS_MAX
from protocol.runfile import parse_run_file

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
DOCUMENT: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
NODES = {
    name: service
    for name, service in SERVICES.items()
    if name == "node" or name.startswith("node-")
}
TRAINED_BY_DEFAULT = {"node-cable", "node-dsl", "node-starlink", "node-lte"}
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")

every_service = pytest.mark.parametrize("name", SERVICES)


def seconds(duration: str) -> int:
    """The number of seconds of a duration such as 30s."""
    found = re.fullmatch(r"(\d+)s", duration)
    assert found, f"expected whole seconds, found {duration!r}"
    return int(found[1])


def test_without_a_profile_four_nodes_train() -> None:
    plain = {name for name, service in SERVICES.items() if not service.get("profiles")}
    assert plain == {"coordinator", "relay", "node", *TRAINED_BY_DEFAULT}
    assert SERVICES["node"]["deploy"] == {"replicas": "${LOCKSTEP_NODES:-0}"}


@pytest.mark.parametrize("name", ["coordinator", "relay", *NODES])
def test_a_process_of_the_run_ends_on_sigterm_in_its_first_seconds(name: str) -> None:
    assert SERVICES[name]["init"] is True


def test_kernels_are_compiled_once_for_all_nodes_of_a_machine() -> None:
    for name in NODES:
        service = SERVICES[name]
        assert service["environment"]["NUMBA_CACHE_DIR"] == "/corpora/kernels"
        assert "corpora:/corpora" in service["volumes"]


def test_the_profiles_are_those_of_the_first_lines() -> None:
    assert {
        profile for service in SERVICES.values() for profile in service.get("profiles", ())
    } == {
        "auditor",
        "monitoring",
        "chaos",
        "gpu",
    }


def test_the_named_nodes_are_behind_different_links_that_exist() -> None:
    asked = [
        SERVICES[name]["environment"]["LOCKSTEP_LINK_PROFILE"]
        for name in sorted(TRAINED_BY_DEFAULT)
    ]
    assert len(set(asked)) == len(TRAINED_BY_DEFAULT)
    for name in asked:
        read_profiles().profile(name)


@every_service
def test_an_image_is_built_here_or_pinned(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    if "build" in SERVICES[name]:
        assert image.startswith("lockstep-")
    else:
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"expected a full version, found {tag!r}"


@every_service
def test_every_service_has_only_the_rights_that_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert not {"privileged", "pid", "ipc", "userns_mode", "network_mode"} & set(service) - (
        {"network_mode"} if service.get("network_mode") == "none" else set()
    )
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert set(service.get("cap_add", ())) <= {
        "KILL",
        "NET_ADMIN",
        "NET_RAW",
        "SETGID",
        "SETUID",
        "SYS_NICE",
    }


@every_service
def test_no_container_takes_all_of_the_machine(name: str) -> None:
    service = SERVICES[name]
    assert service["mem_limit"] in ("${LOCKSTEP_MEMORY_LIMIT:-4g}", "256m")
    assert service["pids_limit"] <= 512
    needed = CONNECTIONS_MAX + RESERVE if name == "coordinator" else 2 * PIPES_MAX
    assert needed <= service["ulimits"]["nofile"]["soft"] <= service["ulimits"]["nofile"]["hard"]
    assert service["ulimits"]["core"] == 0


@every_service
def test_only_the_start_of_a_node_and_chaos_run_as_root(name: str) -> None:
    service = SERVICES[name]
    if service.get("user") != "root":
        assert "cap_add" not in service
    elif name != "chaos":
        assert service["entrypoint"] == ["/opt/lockstep/deploy/entrypoint_node.sh"]


@every_service
def test_an_init_may_signal_a_program_that_has_changed_its_user(name: str) -> None:
    added = SERVICES[name].get("cap_add", ())
    assert ("KILL" in added) == ("SETUID" in added), "docker stop would kill it in its round"


def test_only_chaos_holds_the_engine_s_socket() -> None:
    holders = [
        name for name, service in SERVICES.items() if "docker.sock" in str(service.get("volumes"))
    ]
    assert holders == ["chaos"]
    assert SERVICES["chaos"]["network_mode"] == "none"


@every_service
def test_ports_without_a_password_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        outside, inside = port.rsplit(":", 1)
        if inside in ("50700", "50710"):  # where nodes elsewhere may be wanted
            assert outside == f"${{LOCKSTEP_PUBLISH_ON:-127.0.0.1}}:{inside}"
        else:
            assert outside.startswith("127.0.0.1:")


def test_no_two_services_want_one_port() -> None:
    published = [
        port.split(":")[-2] for service in SERVICES.values() for port in service.get("ports", ())
    ]
    fixed = [port for port in published if port]
    assert len(fixed) == len(set(fixed))


@every_service
def test_health_is_checked_before_anything_depends_on_it(name: str) -> None:
    service = SERVICES[name]
    if name == "chaos":  # does nothing that others wait for
        assert service["healthcheck"] == {"disable": True}
    else:
        assert {"test", "interval", "timeout", "retries"} <= set(service["healthcheck"])
    for needed, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert "test" in SERVICES[needed]["healthcheck"]


@every_service
def test_a_killed_container_restarts_and_a_finished_one_does_not(name: str) -> None:
    assert SERVICES[name]["restart"] == "on-failure"
    assert SERVICES[name]["stop_signal"] == "SIGTERM"


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_given_the_time_of_the_longest_round_to_finish_it(name: str) -> None:
    rounds = parse_run_file((ROOT / "deploy/run.toml").read_text()).rounds
    longest_ms = rounds.stretch * (rounds.compute_ms + rounds.publish_ms + rounds.exchange_ms)
    assert 1000 * seconds(NODES[name]["stop_grace_period"]) > longest_ms


@every_service
def test_logs_are_bounded(name: str) -> None:
    assert set(SERVICES[name]["logging"]["options"]) == {"max-size", "max-file"}


def test_state_is_in_named_volumes_of_one_owner_each() -> None:
    owners: dict[str, list[str]] = {}
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source, _, target = volume.rpartition(":")
            if target in ("/state", "/prometheus", "/var/lib/grafana") and source:
                owners.setdefault(source, []).append(name)
    assert all(len(names) == 1 for names in owners.values()), owners
    assert {*owners, "corpora", "invitation"} == set(DOCUMENT["volumes"])
    assert {name for names in owners.values() for name in names} == set(SERVICES) - {
        "node",
        "chaos",
    }


def test_strangers_need_a_token_and_every_process_of_the_file_has_one() -> None:
    assert SERVICES["coordinator"]["environment"]["LOCKSTEP_ADMIT"] == "${LOCKSTEP_ADMIT:-token}"
    assert "invitation:/invitation" in SERVICES["coordinator"]["volumes"]
    shown = {
        name: [*service.get("entrypoint", ()), *service.get("command", ())]
        for name, service in SERVICES.items()
        if "invitation:/invitation:ro" in service.get("volumes", ())
    }
    assert shown.keys() == {"relay", "auditor", *NODES}
    for name, words in shown.items():
        begin = words.index("/opt/lockstep/deploy/invited.sh")
        assert words[begin + 1] == ("nodes" if name in NODES else "relays")
        assert words[begin + 2] == "lockstep"


def test_the_env_file_has_every_variable_with_its_default() -> None:
    documented = dict(
        re.findall(r"^#(LOCKSTEP_\w+)=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE)
    )
    assert documented == {name: default or "" for name, default in VARIABLE.findall(TEXT)}


def test_one_variable_has_one_default() -> None:
    found = set(VARIABLE.findall(TEXT))
    assert len({name for name, _ in found}) == len(found)


def variables(command: Any) -> set[str]:
    """Those that a command and what is under it read."""
    own = {each.envvar for each in command.params if getattr(each, "envvar", None)}
    return own.union(*map(variables, getattr(command, "commands", {}).values()))


@every_service
def test_every_variable_given_to_us_is_one_that_we_read(name: str) -> None:
    scripts = [*(ROOT / "deploy").glob("*.py"), ROOT / "deploy/entrypoint_node.sh"]
    known = variables(typer.main.get_command(app)).union(
        *(re.findall(r"LOCKSTEP_[A-Z0-9_]+", path.read_text()) for path in scripts)
    )
    given = {key for key in SERVICES[name].get("environment", {}) if key.startswith("LOCKSTEP_")}
    assert given <= known


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "build" in service])
def test_the_build_s_arguments_are_the_dockerfile_s(name: str) -> None:
    build = SERVICES[name]["build"]
    text = (ROOT / build["dockerfile"]).read_text()
    declared = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    assert set(build["args"]) == set(declared)
    for argument, value in build["args"].items():
        found = VARIABLE.fullmatch(value)
        assert found, f"{argument}: expected one variable with a default, found {value!r}"
        if argument != "TORCH_INDEX" or name != "node-gpu":
            assert found[2] == declared[argument]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy").glob("*.Dockerfile")), ids=lambda path: path.name
)
def test_an_image_runs_as_a_user_and_what_it_copies_is_in_the_context(path: Path) -> None:
    text = path.read_text()
    final = text[text.rindex("FROM ") :]
    assert re.findall(r"^USER (\w+)$", final, re.MULTILINE) == ["lockstep"]
    context = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        word
        for line in re.findall(r"^COPY (deploy/.+) /\S+$", final, re.MULTILINE)
        for word in line.split()
    }
    assert copied
    assert copied <= context
    assert all((ROOT / name).exists() for name in context)
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {name.rstrip("*") for name in setuptools["packages"]["find"]["include"]}
    assert packages <= context


def test_the_auditor_stands_on_no_home_link_and_keeps_its_archive() -> None:
    auditor = SERVICES["auditor"]
    assert auditor["entrypoint"][-2:] == ["lockstep", "auditor"]
    assert "cap_add" not in auditor
    assert "auditor:/state" in auditor["volumes"]
    assert seconds(auditor["stop_grace_period"]) > LAST_COMMIT_S + DRAIN_S + GOODBYE_S


def test_the_coordinator_s_image_has_no_extra() -> None:
    assert "optional-dependencies" not in (ROOT / "deploy/coordinator.Dockerfile").read_text()


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose 1 here")
@pytest.mark.parametrize(
    "profiles", [[], ["auditor"], ["monitoring"], ["chaos"], ["gpu"]], ids="".join
)
def test_docker_compose_1_understands_it(profiles: list[str]) -> None:
    command = ["docker-compose", *(f"--profile={name}" for name in profiles), "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
