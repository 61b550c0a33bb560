"""The run file: every mistake is named, and every party sees the same run."""

import contextlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.errors import SettingsError, VersionError
from protocol.limits import MEMBERS_MAX, RUN_FILE_BYTES_MAX, VOTE_SUM_MAX
from protocol.runfile import RunSpec, parse_run_file, parse_run_json, run_id, run_json

KEY = bytes(range(32))
bounded = settings(max_examples=100)


def problem(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_run_file(text, "run.toml")
    return str(caught.value)


def test_an_empty_file_is_the_defaults() -> None:
    assert parse_run_file("") == RunSpec()


def test_what_is_written_is_read() -> None:
    spec = parse_run_file(
        """
        lockstep = 1
        name = "my-run.2"
        seed = 7
        [algorithm]
        name = "demo"
        momentum_decay = 0   # a whole number is a number
        value_bits = 4
        [rounds]
        overlap = 0
        compute_ms = 2_000
        [model.config]
        vocab_size = 300
        deep = { list = [1, 2.5, "x", true] }
        """
    )
    assert (spec.name, spec.seed, spec.algorithm.momentum_decay, spec.algorithm.value_bits) == (
        "my-run.2",
        7,
        0.0,
        4,
    )
    assert (spec.rounds.overlap, spec.rounds.compute_ms, spec.rounds.publish_ms) == (0, 2000, 5000)
    assert spec.model.config == {"vocab_size": 300, "deep": {"list": [1, 2.5, "x", True]}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "surprise = 1",
            "surprise: no such field (expected one of those that `lockstep init` writes)",
        ),
        ("[rounds]\ncompute = 5", "rounds.compute: no such field"),
        ("[nonsense]\nx = 1", "nonsense: no such field"),
        ("seed = '7'", "seed: expected a valid integer, found '7'"),
        ("seed = 1.5", "seed: expected a valid integer, found 1.5"),
        ("seed = true", "seed: expected a valid integer, found True"),
        ("rounds = 5", "rounds: expected"),
        (
            "[schedule]\nlearning_rate = 'fast'",
            "schedule.learning_rate: expected a valid number, found 'fast'",
        ),
        (
            "[schedule]\nlearning_rate = 0",
            "schedule.learning_rate: expected greater than 0, found 0",
        ),
        ("[schedule]\nlearning_rate = nan", "schedule.learning_rate: expected"),
        (
            "[schedule]\nlearning_rate = inf",
            "schedule.learning_rate: expected less than or equal to 10, found inf",
        ),
        (
            "[schedule]\nshape = 'stairs'",
            "schedule.shape: expected 'cosine' or 'constant', found 'stairs'",
        ),
        ("[rounds]\noverlap = 2", "rounds.overlap: expected 0 or 1, found 2"),
        (
            "[rounds]\ncompute_ms = 0",
            "rounds.compute_ms: expected greater than or equal to 1, found 0",
        ),
        (
            "[rounds]\ncompute_ms = 86_400_001",
            "rounds.compute_ms: expected less than or equal to 86400000",
        ),
        ("[rounds]\nquorum = 0", "rounds.quorum: expected greater than or equal to 1, found 0"),
        (
            "[rounds]\npayload_bytes_max = 1",
            "rounds.payload_bytes_max: expected greater than or equal to 1024",
        ),
        ("[algorithm]\nvalue_bits = 3", "algorithm.value_bits: expected 1, 2, 4 or 8, found 3"),
        (
            "[algorithm]\nname = 'adam'",
            "algorithm.name: expected 'demo', 'local_steps' or 'gossip-adam', found 'adam'",
        ),
        (
            "[algorithm]\nmomentum_decay = 1.0",
            "algorithm.momentum_decay: expected less than 1, found 1.0",
        ),
        ("[algorithm]\nfade = 1.5", "algorithm.fade: expected less than or equal to 1, found 1.5"),
        ("[algorithm]\ngain = 0.5", "algorithm.gain: expected greater than or equal to 1"),
        ("[algorithm]\ngain = 65", "algorithm.gain: expected less than or equal to 64"),
        ("[algorithm]\ngain = 2.3", "algorithm.gain: expected a multiple of 0.0625, found 2.3"),
        (
            "[membership]\nmembers_max = 5000",
            f"membership.members_max: expected less than or equal to {MEMBERS_MAX}",
        ),
        ("name = ''", "name: expected"),
        ("name = 'a b'", "name: expected"),
        ("name = '../up'", "name: expected"),
        (
            "seed = 9223372036854775808",
            "seed: expected less than 9223372036854775808, found 9223372036854775808",
        ),
        ("[data]\nmanifest_sha256 = 'XYZ'", "data.manifest_sha256: expected"),
        ("[data]\nurl = 'file:///etc'", "data.url: expected"),
        ("[data]\nurl = 'https://a/b?c=d'", "data.url: expected"),
        ('[data]\nurl = "https://a/\\u001b"', "data.url: expected"),
        ("[data]\nurl = 'https://a/b'", "url needs manifest_sha256"),
        (
            f"[data]\nurl = 'https://me:secret@a/b'\nmanifest_sha256 = '{'0' * 64}'",
            "expected one URL without a name and password",
        ),
        (
            f"[data]\nurl = 'https://a/b::file:///c'\nmanifest_sha256 = '{'0' * 64}'",
            "expected one URL without a name and password",
        ),
        (
            f"genesis = 's3://me:secret@a/b'\ngenesis_sha256 = '{'0' * 64}'",
            "genesis: expected one URL without a name and password",
        ),
    ],
)
def test_a_mistake_names_field_expected_and_found(text: str, words: str) -> None:
    assert problem(text).startswith("run.toml: ")
    assert words in problem(text)


@pytest.mark.parametrize(
    "place",
    [
        r"\\\\host\\share\\model",
        "//host/share/model",
        r"\\\\?\\C:\\model",
        "file:///etc",
        "file:/etc",
        "ftp://a/b",
        "javascript:alert",
        "https://a/b?c=d",
        "/models/\\u001b[2J",
        "/models/\\u202efdp",
    ],
)
def test_genesis_is_a_path_of_this_machine_or_a_url_of_the_kinds_that_nodes_open(
    place: str,
) -> None:
    told = problem(f'genesis = "{place}"\ngenesis_sha256 = "{"0" * 64}"')
    assert "genesis: expected the path of a directory of this machine, or a URL of kind" in told
    assert told.isprintable()


@pytest.mark.parametrize(
    "place",
    [
        "/models/winter 2",
        "models/winter",
        "~/wintér",
        r"C:\\models",
        "C:/models",
        "hf://a/b",
        "s3://a",
    ],
)
def test_genesis_may_be_a_path_or_a_url(place: str) -> None:
    text = f'genesis = "{place}"\ngenesis_sha256 = "{"0" * 64}"'
    assert parse_run_file(text).genesis == place.replace(r"\\", "\\")


def test_all_mistakes_are_told_at_once() -> None:
    told = problem("seed = -1\n[rounds]\nquorum = 0\novrlap = 1")
    for field in ("seed", "rounds.quorum", "rounds.ovrlap"):
        assert f"{field}: " in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[rounds]\nquorum = 9\n[membership]\nmembers_max = 8",
            "fields together: rounds.quorum 9 exceeds membership.members_max 8",
        ),
        (
            "[membership]\nlease_ms = 3999\nheartbeat_ms = 2000",
            "fields together: membership.lease_ms 3999 must be at least twice heartbeat_ms 2000",
        ),
        (
            "[algorithm]\nname = 'local_steps'\nvalue_bits = 4",
            "algorithm.value_bits must be 1 or 2 with local_steps, got 4",
        ),
        (
            "[algorithm]\nname = 'demo'\n[rounds]\nsums = 9\noverlap = 0",
            "rounds.sums: expected 0 with demo, whose payloads are no movements, got 9",
        ),
        (
            "[algorithm]\nname = 'demo'\ngain = 2.5\n[rounds]\noverlap = 0",
            "algorithm.gain counts for nothing with the algorithm demo: expected it left out, or 1",
        ),
        (
            "[algorithm]\nname = 'local_steps'\n[rounds]\nbatch_samples_max = 16776960",
            "add up to 16777216, above 16777215: local_steps weigh nodes by their samples",
        ),
        (
            "[algorithm]\nname = 'gossip-adam'\ntop_k = 64",
            "algorithm.top_k counts for nothing with the algorithm gossip-adam: expected it",
        ),
        (
            "[algorithm.mixing]\naccumulate = 4",
            "algorithm.mixing.accumulate counts for nothing with the algorithm local_steps: ",
        ),
        (
            "[algorithm]\nname = 'gossip-adam'\n[membership]\ntrust = 'public'",
            "membership.trust must be known with gossip-adam, got public",
        ),
        (
            "[algorithm]\nname = 'gossip-adam'\n[algorithm.mixing]\ntopology = 'complete'",
            "membership.members_max must be at most 64 with gossip-adam and the topology complete",
        ),
    ],
)
def test_fields_must_fit_together(text: str, words: str) -> None:
    assert words in problem(text)


def test_fields_that_just_fit_are_taken() -> None:
    parse_run_file(
        "[rounds]\nquorum = 8\n[membership]\nmembers_max = 8\nlease_ms = 4000\nheartbeat_ms = 2000"
    )


@pytest.mark.parametrize("text", ["= 1", "[rounds", "seed = ", "seed = 1\nseed = 2", "\x00"])
def test_bad_toml_says_where(text: str) -> None:
    assert problem(text).startswith("run.toml: not valid TOML: ")


@pytest.mark.parametrize("text", ["\ufeffseed = 7\n", "seed = 7\r\n", "\ufeff\r\nseed = 7\r\n"])
def test_a_file_that_windows_has_saved_is_read(text: str) -> None:
    assert parse_run_file(text) == RunSpec(seed=7)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_named_with_what_to_do(encoding: str) -> None:
    text = "# a run\nseed = 7\n".encode(encoding).decode(errors="replace")
    assert problem(text) == "run.toml: expected UTF-8, found UTF-16: save it as UTF-8"


def test_another_encoding_is_refused_before_a_name_is_garbled() -> None:
    text = '[data]\ncorpus = "Bücher"\n'.encode("latin-1").decode(errors="replace")
    assert problem(text) == "run.toml: expected UTF-8, found another encoding: save it as UTF-8"


@pytest.mark.parametrize("version", ["2", "0", "'1'"])
def test_another_format_version_is_its_own_error(version: str) -> None:
    with pytest.raises(
        VersionError, match=r"run.toml: expected format version lockstep = 1, found"
    ):
        parse_run_file(f"lockstep = {version}\nanything_new = 1", "run.toml")


def test_another_format_version_from_a_coordinator_is_its_own_error() -> None:
    with pytest.raises(VersionError):
        parse_run_json(b'{"lockstep": 2}', "coordinator")


def test_a_file_that_is_too_long_is_not_parsed() -> None:
    assert f"expected at most {RUN_FILE_BYTES_MAX} bytes" in problem("#" * (RUN_FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="expected at most"):
        parse_run_json(b" " * (RUN_FILE_BYTES_MAX + 1), "coordinator")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"1", b"null", b'"x"'])
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(SettingsError, match=r"^coordinator: "):
        parse_run_json(text, "coordinator")


@pytest.mark.parametrize(
    "text", [b'{"surprise": 1}', b'{"seed": "1"}', b'{"rounds": {"quorum": 0}}', b'{"rounds": []}']
)
def test_a_served_run_file_is_validated_again(text: bytes) -> None:
    with pytest.raises(SettingsError):
        parse_run_json(text, "coordinator")


# ---- one run, one name


specs = st.builds(
    lambda seed, rate, top_k, quorum, config: RunSpec.model_validate(
        {
            "seed": seed,
            "schedule": {"learning_rate": rate},
            "algorithm": {"top_k": top_k},
            "rounds": {"quorum": quorum},
            "model": {"config": config},
        }
    ),
    st.integers(0, 2**63 - 1),
    st.floats(1e-9, 10, allow_subnormal=False),
    st.integers(1, 4096),
    st.integers(1, 256),
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.integers(-(2**60), 2**60), st.text(max_size=8), st.booleans()),
    ),
)


@bounded
@given(specs)
def test_what_is_served_is_what_was_read(spec: RunSpec) -> None:
    text = run_json(spec)
    assert parse_run_json(text, "coordinator") == spec
    assert run_json(parse_run_json(text, "coordinator")) == text


@bounded
@given(specs)
def test_canonical_json_has_sorted_keys_and_no_spaces(spec: RunSpec) -> None:
    def keys_sorted(value: Any) -> bool:
        return not isinstance(value, dict) or (
            list(value) == sorted(value) and all(keys_sorted(inner) for inner in value.values())
        )

    document = msgspec.json.decode(run_json(spec))
    assert keys_sorted(document)
    assert msgspec.json.encode(document) == run_json(spec)


def test_the_order_in_the_file_does_not_matter() -> None:
    one = parse_run_file(
        "seed = 1\n[rounds]\nquorum = 3\noverlap = 0\n[model.config]\na = 1\nb = 2"
    )
    two = parse_run_file(
        "seed = 1\n[model.config]\nb = 2\na = 1\n[rounds]\noverlap = 0\nquorum = 3"
    )
    assert run_json(one) == run_json(two)


def test_a_default_written_out_is_the_same_run() -> None:
    assert run_id(parse_run_file("[rounds]\nquorum = 2"), KEY) == run_id(RunSpec(), KEY)


def test_every_field_and_the_key_are_in_the_name() -> None:
    names = {
        run_id(RunSpec(), KEY),
        run_id(RunSpec(), KEY[::-1]),
        run_id(parse_run_file("seed = 1"), KEY),
        run_id(parse_run_file("[membership]\nneighbours = 5"), KEY),
        run_id(parse_run_file("[model.config]\nvocab_size = 1"), KEY),
    }
    assert len(names) == 5


def test_numbers_that_json_cannot_hold_still_make_one_name() -> None:
    spec = parse_run_file(
        "[model.config]\na = nan\nb = inf\nc = 1979-05-27\nd = 36893488147419103232"
    )
    assert math.isnan(spec.model.config["a"])
    served = parse_run_json(run_json(spec), "coordinator")
    assert run_id(served, KEY) == run_id(spec, KEY)


def test_json_and_name_are_pinned() -> None:
    """A change of these literals gives every run another name: nodes of two releases could not
    meet.
    """
    assert run_json(RunSpec())[:42] == b'{"algorithm":{"fade":1.0,"gain":1.0,"local'
    assert run_id(RunSpec(), KEY) == "0448e27a83bd2c894ebce6cf5b850432"


def test_demo_takes_its_gradients_where_the_log_says_and_refuses_overlap() -> None:
    with pytest.raises(SettingsError, match=r"rounds\.overlap: expected 0 with demo.*got 1; set 0"):
        parse_run_file("[algorithm]\nname = 'demo'\n[rounds]\noverlap = 1")


def test_rounds_that_wait_are_named_only_where_there_are_any() -> None:
    """So runs without them keep their names, and one with them comes back as it is."""
    assert b"audit_every" not in run_json(RunSpec())
    spec = parse_run_file("[rounds]\noverlap = 1\naudit_every = 16")
    assert b'"audit_every":16' in run_json(spec)
    assert parse_run_json(run_json(spec), "coordinator") == spec
    assert run_id(spec, KEY) != run_id(parse_run_file("[rounds]\noverlap = 1"), KEY)
    overlaps = [round for round in range(40) if spec.rounds.overlap_at(round)]
    assert overlaps == [round for round in range(40) if round not in (0, 16, 32)]
    assert spec.rounds.hides


def test_a_run_file_is_frozen() -> None:
    with pytest.raises(ValidationError):
        RunSpec().rounds.quorum = 5


def test_every_field_says_what_it_means() -> None:
    def undocumented(model: Any, prefix: str = "") -> list[str]:
        missing = []
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                missing += undocumented(field.annotation, f"{prefix}{name}.")
            elif not field.description:
                missing.append(prefix + name)
        return missing

    assert undocumented(RunSpec) == []


def test_all_votes_of_a_step_are_counted_exactly() -> None:
    """No run file allows more votes than float32 adds exactly."""
    most = parse_run_file(
        f"[algorithm]\nname = 'demo'\nvalue_bits = 8\n[membership]\nmembers_max = {MEMBERS_MAX}"
    )
    assert most.membership.members_max * 2 ** (most.algorithm.value_bits - 1) <= VOTE_SUM_MAX


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "{b=" * 2000,
        "seed = " + "9" * 5000,
        "x" * 300,
        "a.a = 1\na = 2",
    ],
)
def test_toml_that_breaks_its_parser_is_a_settings_error(text: str) -> None:
    with pytest.raises(SettingsError, match="run file: "):
        parse_run_file(text)


@pytest.mark.parametrize(
    "blob",
    [
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"seed":' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
    ],
)
def test_json_that_breaks_its_parser_is_a_settings_error(blob: bytes) -> None:
    with pytest.raises(SettingsError, match="told: "):
        parse_run_json(blob, "told")


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_run_file_or_an_error_for_people(blob: bytes) -> None:
    with contextlib.suppress(SettingsError, VersionError):
        parse_run_json(blob, "told")
    with contextlib.suppress(SettingsError, VersionError):
        parse_run_file(blob.decode(errors="replace"))
