"""The run file: everything that all parties of a run must agree on, as validated, frozen values.

An operator writes it in TOML (`lockstep init` writes a commented one); the coordinator serves it;
every node validates it again. Each field documents its meaning, unit, bound and default here and
nowhere else: the commented file, the reference page and the error messages are made from these
docstrings and bounds.
"""

import hashlib
import re
import tomllib
from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from protocol.addresses import PUBLISHED_URL, has_login, is_plain_path
from protocol.errors import SettingsError, VersionError
from protocol.ids import RunId
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT, RUN_FILE_BYTES_MAX, VOTE_SUM_MAX
from protocol.sections.algorithm import AlgorithmSpec
from protocol.sections.retention import RetentionSpec
from protocol.sections.section import Section
from protocol.validation import NAME, SHA256, problems_text, require_utf8

__all__ = [
    "RUN_FILE_VERSION",
    "AlgorithmSpec",
    "DataSpec",
    "MembershipSpec",
    "ModelSpec",
    "RetentionSpec",
    "RoundsSpec",
    "RunSpec",
    "ScheduleSpec",
    "parse_run_file",
    "parse_run_json",
    "run_id",
    "run_json",
]

RUN_FILE_VERSION = 1

Millis = Annotated[int, Field(ge=1, le=24 * 3600 * 1000)]


def _require_public(field: str, url: str) -> None:
    """`ValueError` for an address that everybody who reads the run file must not see."""
    if "::" in url or has_login(url):
        raise ValueError(f"{field}: expected one URL without a name and password in it")


class ModelSpec(Section):
    """The network: any causal language model that transformers builds from a configuration."""

    type: str = Field(default="llama", min_length=1, max_length=64)
    """Model type as transformers names it (its `model_type`), for example "llama", "gpt2",
    "qwen2"."""

    init_std: float = Field(default=0.02, gt=0, le=1)
    """Standard deviation of the initial weights that are not constants."""

    config: dict[str, Any] = Field(
        default_factory=lambda: {
            "vocab_size": 257,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
        }
    )
    """The configuration's fields, as transformers names them; "null" stands for none."""


class DataSpec(Section):
    """The text that the nodes train on."""

    corpus: str = Field(default="lockstep-2026", min_length=1, max_length=128)
    """Name of the corpus. Two are built in: "lockstep-2026", Lockstep's own sources and pages, the
    same on every machine; and "python-stdlib", the sources of each node's own Python, which differ
    between its versions. With any other name nodes fetch the data from `url`, or each points to its
    own prepared directory (`lockstep join --data DIR`)."""

    url: str = Field(default="", max_length=1024, pattern=PUBLISHED_URL)
    """URL at which `lockstep data publish` has put the data, of kind http, https, hf, s3 or gs:
    nodes fetch only the ranges of their samples; empty: nowhere. Needs `manifest_sha256`."""

    manifest_sha256: str = Field(default="", pattern=SHA256)
    """SHA-256 of the manifest that every node's data must have; empty: nodes may train on their own
    data."""

    sequence_length: int = Field(default=128, ge=8, le=1_048_576)
    """Length of one sample, in tokens."""

    @model_validator(mode="after")
    def _url_is_safe(self) -> "DataSpec":
        if self.url and not self.manifest_sha256:
            raise ValueError("url needs manifest_sha256, by which nodes judge the data: got none")
        _require_public("url", self.url)
        return self


class ScheduleSpec(Section):
    """Learning rate and weight decay by step."""

    steps: int = Field(default=2000, ge=1, le=100_000_000)
    """Length of the run, in steps (committed rounds)."""

    learning_rate: float = Field(default=0.012, gt=0, le=10)
    """Largest learning rate. With local steps that of the node's own optimizer: the default is for
    a network of width 128, and the best rate falls as the width grows, as `lockstep init --from`
    writes it (docs/results/local-steps.md). With "demo" the distance that one step moves each
    parameter; it wants a twelfth of the default."""

    warmup_steps: int = Field(default=50, ge=0, le=10_000_000)
    """Steps over which the learning rate rises linearly from zero."""

    shape: Literal["cosine", "constant"] = "cosine"
    """Course of the learning rate from its largest value to the final one."""

    final_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a fraction of the largest."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decoupled weight decay; a step multiplies the parameters by 1 - learning rate * weight
    decay."""


class RoundsSpec(Section):
    """The clock of one round."""

    compute_ms: Millis = 10_000
    """Time from the opening of a round to its bell, in milliseconds: the longest that nodes
    train."""

    publish_ms: Millis = 5_000
    """Time from the bell to `publish_by`, in milliseconds: a payload announced later is late."""

    exchange_ms: Millis = 10_000
    """Time from `publish_by` to `commit_by`, in milliseconds: the latest instant of the round's
    decision."""

    stretch: int = Field(default=4, ge=1, le=100)
    """Adaptive pacing: a run begins with `publish_ms` and `exchange_ms` as stated; then both follow
    the time that three members in four are measured to need, up to this many times longer or
    shorter. `compute_ms` is lengthened within the same bound when the exchange would not be hidden
    behind it, and never shortened. 1: all three stay as stated."""

    overlap: Literal[0, 1] = 0
    """Rounds that are exchanged while the next one is computed. 1 hides the exchange: a node trains
    on until the commit arrives, from where its own steps left it, which DeMo cannot. That pays
    where the exchange takes about as long as the passes; it takes one more copy of the parameters,
    a whole round of delay costs learning (docs/results/local-steps.md), and the work of such rounds
    is audited with `audit_every` alone."""

    audit_every: int = Field(default=0, ge=0, le=1_000_000)
    """Where rounds overlap, every round whose number this divides waits for the decision before it,
    so that an auditor can compute its work again (docs/explain/trust.md); the exchange before it is
    not hidden. 0: none waits, and no work is audited."""

    batch_samples_max: int = Field(default=320, ge=1, le=100_000_000)
    """Samples that all nodes together may train in a round, split in proportion to their speed.
    With the default two nodes make some 20 local steps in a round, and eight nodes 5; nothing
    separated 5, 10 and 20 at equal bytes (docs/results/local-steps.md)."""

    share_samples_first: int = Field(default=8, ge=1, le=1_000_000)
    """Share of a node whose speed is not known yet, in samples."""

    quorum: int = Field(default=2, ge=1, le=MEMBERS_MAX)
    """Least number of contributors that may commit; below it the round is skipped."""

    payload_bytes_max: int = Field(default=64 * 1024**2, ge=1024, le=PAYLOAD_BYTES_LIMIT)
    """Largest payload that the run accepts, in bytes; a node whose model could exceed it says so at
    its start."""

    copies_min: int = Field(default=1, ge=0, le=16)
    """Members besides the author that must hold a payload before it may be committed (fewer only
    when there are fewer members)."""

    sums: int = Field(default=0, ge=0, le=MEMBERS_MAX)
    """Authors of a round, at least, whose payloads summers add for all (docs/explain/sums.md); with
    fewer every payload goes to everybody. For the algorithm "local_steps". 0: never."""

    def overlap_at(self, round: int) -> int:
        """Rounds that may be undecided when this one is begun."""
        waits = self.audit_every > 0 and round % self.audit_every == 0
        return 0 if waits else self.overlap

    @property
    def hides(self) -> bool:
        """Whether most rounds overlap with the one before them."""
        return self.overlap > 0

    @property
    def audits_overlap(self) -> bool:
        """Whether rounds that wait are strewn among those that overlap."""
        return self.hides and self.audit_every > 0

    @model_serializer(mode="wrap")
    def _without_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The table without what no round does, so that older runs keep their names."""
        table: dict[str, Any] = write(self)
        left_out = {name for name in ("audit_every", "sums") if not table[name]}
        return {name: value for name, value in table.items() if name not in left_out}


class MembershipSpec(Section):
    """Admission and presence of members."""

    trust: Literal["known", "public"] = "known"
    """The members that decide. "known": every one, for a run among people that know each other.
    "public": those with standing, which the operator has vouched for (`lockstep coordinator
    --vouch`) or whose payloads were committed often enough. Keys without standing work and are
    counted in bounded number, but nobody waits for them, and they give no receipts, votes or
    quorum."""

    start_members: int = Field(default=2, ge=1, le=MEMBERS_MAX)
    """Ready members that the first round waits for."""

    members_max: int = Field(default=256, ge=1, le=MEMBERS_MAX)
    """Members that the run admits at most."""

    lease_ms: Millis = 15_000
    """A member that is silent for this long is evicted, in milliseconds."""

    heartbeat_ms: Millis = 2_000
    """A node sends a heartbeat this often, in milliseconds."""

    strikes_to_mute: int = Field(default=4, ge=1, le=1000)
    """Late rounds, less punctual ones, after which a node's payloads no longer count until it is
    punctual."""

    neighbours: int = Field(default=8, ge=1, le=64)
    """Peers to which a node offers the payloads that it holds, chosen anew each round."""


class RunSpec(Section):
    """A whole run file."""

    lockstep: int = RUN_FILE_VERSION
    """Version of the run file's format."""

    name: str = Field(default="first-run", pattern=NAME)
    """Name of the run: letters, digits, dot, dash and underscore."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the initial weights and of the data order."""

    genesis: str = Field(default="", max_length=1024)
    """Published checkpoint from which the run begins: a directory, or a URL of kind http, https,
    hf, s3 or gs; empty: the initial weights are drawn from the seed."""

    genesis_sha256: str = Field(default="", pattern=SHA256)
    """SHA-256 of its parameters' canonical bytes, which `lockstep status` and model cards show;
    needed with `genesis`."""

    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    algorithm: AlgorithmSpec = AlgorithmSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    rounds: RoundsSpec = RoundsSpec()
    membership: MembershipSpec = MembershipSpec()
    retention: RetentionSpec = RetentionSpec()

    @model_validator(mode="after")
    def _fields_fit_together(self) -> "RunSpec":
        members, rounds = self.membership, self.rounds
        self.algorithm.require_one_algorithm()
        if bool(self.genesis) != bool(self.genesis_sha256):
            raise ValueError("genesis and genesis_sha256 belong together: got only one of them")
        _require_public("genesis", self.genesis)
        if not (is_plain_path(self.genesis) or re.fullmatch(PUBLISHED_URL, self.genesis)):
            raise ValueError(
                "genesis: expected the path of a directory of this machine, or a URL of kind http, "
                f"https, hf, s3 or gs, got {self.genesis[:80]!a}"
            )
        if rounds.quorum > members.members_max:
            raise ValueError(
                f"rounds.quorum {rounds.quorum} exceeds membership.members_max "
                f"{members.members_max}"
            )
        if members.lease_ms < 2 * members.heartbeat_ms:
            raise ValueError(
                f"membership.lease_ms {members.lease_ms} must be at least twice heartbeat_ms "
                f"{members.heartbeat_ms}"
            )
        if self.retention.snapshot_every > self.retention.log_rounds:
            raise ValueError(
                f"retention.snapshot_every {self.retention.snapshot_every} exceeds log_rounds "
                f"{self.retention.log_rounds}: a snapshot's reader could not replay on"
            )
        facts, name = self.algorithm.facts, self.algorithm.name
        if rounds.overlap and not facts.overlaps:
            raise ValueError(
                f"rounds.overlap: expected 0 with {name}, whose gradients are those of the "
                f"decided parameters, got {rounds.overlap}; set 0, or algorithm.name to local_steps"
            )
        if rounds.sums and not facts.steps_within_round:
            what = f"rounds.sums: expected 0 with {name}, whose payloads are no movements"
            raise ValueError(f"{what}, got {rounds.sums}; set 0, or algorithm.name to local_steps")
        if facts.steps_within_round:
            self._require_local_steps()
        if not facts.replicas_equal:
            self._require_mixing()
        return self

    def _require_local_steps(self) -> None:
        algorithm, rounds = self.algorithm, self.rounds
        if (bits := algorithm.value_bits) > 2:
            raise ValueError(f"algorithm.value_bits must be 1 or 2 with local_steps, got {bits}")
        samples = rounds.batch_samples_max + self.membership.members_max
        if samples > VOTE_SUM_MAX:
            raise ValueError(
                f"rounds.batch_samples_max and membership.members_max add up to {samples}, above "
                f"{VOTE_SUM_MAX}: local_steps weigh nodes by their samples"
            )

    def _require_mixing(self) -> None:
        members, mixing = self.membership, self.algorithm.mixing
        if members.trust != "known":
            raise ValueError(
                "membership.trust must be known with gossip-adam, got "
                f"{members.trust}: nobody can audit the parameters that a stranger sends"
            )
        if members.members_max > mixing.members_max:
            raise ValueError(
                f"membership.members_max must be at most {mixing.members_max} with gossip-adam and "
                f"the topology {mixing.topology}, got {members.members_max}"
            )


def parse_run_file(text: str, origin: str = "run file") -> RunSpec:
    """The validated run file, or `SettingsError` (`VersionError` for another format version) that
    names every wrong field with what was expected and what was found. `origin` is how the message
    calls it.
    """
    if len(text.encode()) > RUN_FILE_BYTES_MAX:
        raise SettingsError(
            f"{origin}: expected at most {RUN_FILE_BYTES_MAX} bytes, got {len(text.encode())}"
        )
    require_utf8(text, origin)
    try:
        values = tomllib.loads(text.removeprefix("\ufeff"))  # editors on Windows begin with a mark
    except (ValueError, RecursionError) as error:  # too deep, or a number with too many digits
        raise SettingsError(f"{origin}: not valid TOML: {error}") from None
    return _validated(values, origin)


def parse_run_json(text: bytes, origin: str) -> RunSpec:
    """The run file as a coordinator serves it: canonical JSON of `run_json`."""
    if len(text) > RUN_FILE_BYTES_MAX:
        raise SettingsError(
            f"{origin}: expected at most {RUN_FILE_BYTES_MAX} bytes, got {len(text)}"
        )
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SettingsError(f"{origin}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{origin}: expected an object, got {type(values).__name__}")
    return _validated(values, origin)


def run_json(spec: RunSpec) -> bytes:
    """Canonical JSON of a run file, defaults written out: sorted keys, no spaces."""
    return msgspec.json.encode(spec.model_dump(mode="json"), order="deterministic")


def run_id(spec: RunSpec, coordinator_key: bytes) -> RunId:
    """Name of the run of `spec` under the coordinator with this raw 32-byte ed25519 public key."""
    return RunId(
        hashlib.sha256(b"lockstep.run.v1" + coordinator_key + run_json(spec)).hexdigest()[:32]
    )


_UNKNOWN_FIELD = "no such field (expected one of those that `lockstep init` writes)"


def _validated(values: dict[str, Any], origin: str) -> RunSpec:
    version = values.get("lockstep", RUN_FILE_VERSION)
    if version != RUN_FILE_VERSION:
        raise VersionError(
            f"{origin}: expected format version lockstep = {RUN_FILE_VERSION}, found {version!r}; "
            "use the release of Lockstep that wrote it, or `lockstep init` for a new one"
        )
    try:
        return RunSpec.model_validate(values)
    except ValidationError as error:
        problems = problems_text(error, unknown_field=_UNKNOWN_FIELD)
        raise SettingsError(f"{origin}: {problems}") from None
