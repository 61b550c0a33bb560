from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Run(_message.Message):
    __slots__ = ("protocol_version", "run_id", "run_json", "coordinator_key")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_JSON_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_KEY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    run_json: bytes
    coordinator_key: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., run_json: _Optional[bytes] = ..., coordinator_key: _Optional[bytes] = ...) -> None: ...

class GetCommitsRequest(_message.Message):
    __slots__ = ("after_round", "for_audit")
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    FOR_AUDIT_FIELD_NUMBER: _ClassVar[int]
    after_round: int
    for_audit: bool
    def __init__(self, after_round: _Optional[int] = ..., for_audit: _Optional[bool] = ...) -> None: ...

class Commits(_message.Message):
    __slots__ = ("commits", "decided_round", "head_round", "tail")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[Committed]
    decided_round: int
    head_round: int
    tail: _containers.RepeatedCompositeFieldContainer[ChainEntry]
    def __init__(self, commits: _Optional[_Iterable[_Union[Committed, _Mapping]]] = ..., decided_round: _Optional[int] = ..., head_round: _Optional[int] = ..., tail: _Optional[_Iterable[_Union[ChainEntry, _Mapping]]] = ...) -> None: ...

class ChainEntry(_message.Message):
    __slots__ = ("body", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("round", "step", "digest", "signature")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    digest: bytes
    signature: bytes
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("body", "signature", "state_digest", "digest_reports", "snapshot_sha256", "before", "voids", "trained", "signed_sums", "author_list")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SHA256_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    SIGNED_SUMS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_LIST_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: bytes
    state_digest: int
    digest_reports: int
    snapshot_sha256: bytes
    before: _containers.RepeatedCompositeFieldContainer[ChainEntry]
    voids: _containers.RepeatedCompositeFieldContainer[ChainEntry]
    trained: _containers.RepeatedCompositeFieldContainer[Trained]
    signed_sums: _containers.RepeatedCompositeFieldContainer[SumSigned]
    author_list: bytes
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., state_digest: _Optional[int] = ..., digest_reports: _Optional[int] = ..., snapshot_sha256: _Optional[bytes] = ..., before: _Optional[_Iterable[_Union[ChainEntry, _Mapping]]] = ..., voids: _Optional[_Iterable[_Union[ChainEntry, _Mapping]]] = ..., trained: _Optional[_Iterable[_Union[Trained, _Mapping]]] = ..., signed_sums: _Optional[_Iterable[_Union[SumSigned, _Mapping]]] = ..., author_list: _Optional[bytes] = ...) -> None: ...

class SumSigned(_message.Message):
    __slots__ = ("range", "digest", "public_key", "signature", "silent")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    range: int
    digest: bytes
    public_key: bytes
    signature: bytes
    silent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, range: _Optional[int] = ..., digest: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., silent: _Optional[_Iterable[int]] = ...) -> None: ...

class Trained(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class GetMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointPart(_message.Message):
    __slots__ = ("ticket", "file", "offset", "data")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    file: str
    offset: int
    data: bytes
    def __init__(self, ticket: _Optional[bytes] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class NodeMessage(_message.Message):
    __slots__ = ("hello", "ready", "heartbeat", "announced", "holding", "applied", "leave", "not_held", "audited", "checkpoint", "evaluated", "evidence", "links", "parts", "summed", "wrong_sum")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    NOT_HELD_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    WRONG_SUM_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    ready: Ready
    heartbeat: Heartbeat
    announced: Announced
    holding: Holding
    applied: Applied
    leave: Leave
    not_held: NotHeld
    audited: Audited
    checkpoint: CheckpointSaid
    evaluated: Evaluated
    evidence: Evidence
    links: LinksMeasured
    parts: PartsHeld
    summed: Summed
    wrong_sum: WrongSum
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., announced: _Optional[_Union[Announced, _Mapping]] = ..., holding: _Optional[_Union[Holding, _Mapping]] = ..., applied: _Optional[_Union[Applied, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., not_held: _Optional[_Union[NotHeld, _Mapping]] = ..., audited: _Optional[_Union[Audited, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointSaid, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., links: _Optional[_Union[LinksMeasured, _Mapping]] = ..., parts: _Optional[_Union[PartsHeld, _Mapping]] = ..., summed: _Optional[_Union[Summed, _Mapping]] = ..., wrong_sum: _Optional[_Union[WrongSum, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "run_id", "public_key", "signature", "addresses", "software", "hardware", "name", "relay", "instance", "cannot_train", "only_asks", "token", "head", "sums")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CANNOT_TRAIN_FIELD_NUMBER: _ClassVar[int]
    ONLY_ASKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    public_key: bytes
    signature: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    software: str
    hardware: str
    name: str
    relay: bool
    instance: int
    cannot_train: str
    only_asks: bool
    token: str
    head: Head
    sums: bool
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ..., software: _Optional[str] = ..., hardware: _Optional[str] = ..., name: _Optional[str] = ..., relay: _Optional[bool] = ..., instance: _Optional[int] = ..., cannot_train: _Optional[str] = ..., only_asks: _Optional[bool] = ..., token: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., sums: _Optional[bool] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("round", "state_digest", "resyncs", "voids")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_digest: int
    resyncs: int
    voids: int
    def __init__(self, round: _Optional[int] = ..., state_digest: _Optional[int] = ..., resyncs: _Optional[int] = ..., voids: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_ms", "head")
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    sent_ms: int
    head: Head
    def __init__(self, sent_ms: _Optional[int] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class Announced(_message.Message):
    __slots__ = ("round", "digest", "payload_bytes", "samples", "compute_ms", "loss")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    round: int
    digest: bytes
    payload_bytes: int
    samples: int
    compute_ms: int
    loss: float
    def __init__(self, round: _Optional[int] = ..., digest: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., samples: _Optional[int] = ..., compute_ms: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("round", "digests", "authors")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    AUTHORS_FIELD_NUMBER: _ClassVar[int]
    round: int
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    authors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., digests: _Optional[_Iterable[bytes]] = ..., authors: _Optional[_Iterable[str]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("round", "state_digest", "snapshot_sha256", "voids", "projection", "update")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_digest: int
    snapshot_sha256: bytes
    voids: int
    projection: _containers.RepeatedScalarFieldContainer[float]
    update: float
    def __init__(self, round: _Optional[int] = ..., state_digest: _Optional[int] = ..., snapshot_sha256: _Optional[bytes] = ..., voids: _Optional[int] = ..., projection: _Optional[_Iterable[float]] = ..., update: _Optional[float] = ...) -> None: ...

class Audited(_message.Message):
    __slots__ = ("round", "state_digest", "snapshot_sha256", "voids")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_digest: int
    snapshot_sha256: bytes
    voids: int
    def __init__(self, round: _Optional[int] = ..., state_digest: _Optional[int] = ..., snapshot_sha256: _Optional[bytes] = ..., voids: _Optional[int] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("body", "public_key", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    public_key: bytes
    signature: bytes
    def __init__(self, body: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class WrongSum(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    def __init__(self, body: _Optional[bytes] = ...) -> None: ...

class NotHeld(_message.Message):
    __slots__ = ("round", "digests")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, round: _Optional[int] = ..., digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CheckpointSaid(_message.Message):
    __slots__ = ("round", "state_digest", "sha256", "file_bytes", "url", "failure")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_digest: int
    sha256: bytes
    file_bytes: int
    url: str
    failure: str
    def __init__(self, round: _Optional[int] = ..., state_digest: _Optional[int] = ..., sha256: _Optional[bytes] = ..., file_bytes: _Optional[int] = ..., url: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("round", "loss", "samples", "data_sha256", "failure")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    loss: float
    samples: int
    data_sha256: bytes
    failure: str
    def __init__(self, round: _Optional[int] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., data_sha256: _Optional[bytes] = ..., failure: _Optional[str] = ...) -> None: ...

class LinksMeasured(_message.Message):
    __slots__ = ("links",)
    LINKS_FIELD_NUMBER: _ClassVar[int]
    links: _containers.RepeatedCompositeFieldContainer[MeasuredLink]
    def __init__(self, links: _Optional[_Iterable[_Union[MeasuredLink, _Mapping]]] = ...) -> None: ...

class MeasuredLink(_message.Message):
    __slots__ = ("peer_id", "round_trip_ms", "bit_per_second", "greedy", "breaks")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MS_FIELD_NUMBER: _ClassVar[int]
    BIT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    BREAKS_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    round_trip_ms: int
    bit_per_second: int
    greedy: bool
    breaks: bool
    def __init__(self, peer_id: _Optional[str] = ..., round_trip_ms: _Optional[int] = ..., bit_per_second: _Optional[int] = ..., greedy: _Optional[bool] = ..., breaks: _Optional[bool] = ...) -> None: ...

class PartsHeld(_message.Message):
    __slots__ = ("round", "held")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    round: int
    held: _containers.RepeatedCompositeFieldContainer[HeldParts]
    def __init__(self, round: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldParts, _Mapping]]] = ...) -> None: ...

class HeldParts(_message.Message):
    __slots__ = ("ranges", "payloads")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    ranges: int
    payloads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[int] = ..., payloads: _Optional[_Iterable[int]] = ...) -> None: ...

class Summed(_message.Message):
    __slots__ = ("round", "range", "digest", "result_bytes", "public_key", "signature")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    range: int
    digest: bytes
    result_bytes: int
    public_key: bytes
    signature: bytes
    def __init__(self, round: _Optional[int] = ..., range: _Optional[int] = ..., digest: _Optional[bytes] = ..., result_bytes: _Optional[int] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("challenge", "welcome", "refused", "heartbeat", "members", "opened", "committed", "skipped", "resync", "evicted", "finished", "notice", "chained", "checkpoint", "evaluation", "summer_added", "sums_asked")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    CHAINED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SUMMER_ADDED_FIELD_NUMBER: _ClassVar[int]
    SUMS_ASKED_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    welcome: Welcome
    refused: Refused
    heartbeat: HeartbeatReply
    members: Members
    opened: RoundOpened
    committed: RoundCommitted
    skipped: RoundSkipped
    resync: Resync
    evicted: Evicted
    finished: RunFinished
    notice: Notice
    chained: ChainEntry
    checkpoint: CheckpointAsked
    evaluation: EvaluationAsked
    summer_added: SummerAdded
    sums_asked: SumsAsked
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatReply, _Mapping]] = ..., members: _Optional[_Union[Members, _Mapping]] = ..., opened: _Optional[_Union[RoundOpened, _Mapping]] = ..., committed: _Optional[_Union[RoundCommitted, _Mapping]] = ..., skipped: _Optional[_Union[RoundSkipped, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., evicted: _Optional[_Union[Evicted, _Mapping]] = ..., finished: _Optional[_Union[RunFinished, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., chained: _Optional[_Union[ChainEntry, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointAsked, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationAsked, _Mapping]] = ..., summer_added: _Optional[_Union[SummerAdded, _Mapping]] = ..., sums_asked: _Optional[_Union[SumsAsked, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("decided_round", "head_round", "members", "tail", "head")
    DECIDED_ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    decided_round: int
    head_round: int
    members: Members
    tail: _containers.RepeatedCompositeFieldContainer[ChainEntry]
    head: Head
    def __init__(self, decided_round: _Optional[int] = ..., head_round: _Optional[int] = ..., members: _Optional[_Union[Members, _Mapping]] = ..., tail: _Optional[_Iterable[_Union[ChainEntry, _Mapping]]] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "wrong_results", "retry")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WRONG_RESULTS_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    wrong_results: bool
    retry: bool
    def __init__(self, reason: _Optional[str] = ..., wrong_results: _Optional[bool] = ..., retry: _Optional[bool] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("sent_ms", "received_ms", "replied_ms", "state", "reason", "steps", "validation_loss", "validation_round", "left_ms", "part", "fresh_rounds", "standing_rounds", "standing_round")
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_MS_FIELD_NUMBER: _ClassVar[int]
    REPLIED_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_ROUND_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    FRESH_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    STANDING_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    STANDING_ROUND_FIELD_NUMBER: _ClassVar[int]
    sent_ms: int
    received_ms: int
    replied_ms: int
    state: str
    reason: str
    steps: int
    validation_loss: float
    validation_round: int
    left_ms: int
    part: float
    fresh_rounds: int
    standing_rounds: int
    standing_round: int
    def __init__(self, sent_ms: _Optional[int] = ..., received_ms: _Optional[int] = ..., replied_ms: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., steps: _Optional[int] = ..., validation_loss: _Optional[float] = ..., validation_round: _Optional[int] = ..., left_ms: _Optional[int] = ..., part: _Optional[float] = ..., fresh_rounds: _Optional[int] = ..., standing_rounds: _Optional[int] = ..., standing_round: _Optional[int] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("members", "gone", "changes")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    gone: _containers.RepeatedScalarFieldContainer[str]
    changes: bool
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., changes: _Optional[bool] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("peer_id", "addresses", "relay")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    relay: bool
    def __init__(self, peer_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., relay: _Optional[bool] = ...) -> None: ...

class RoundOpened(_message.Message):
    __slots__ = ("round", "step", "opened_ms", "bell_ms", "publish_by_ms", "commit_by_ms", "shares", "learning_rate_bits", "decay_bits", "muted", "reason", "assigned", "mean", "among_neighbours", "neighbours", "only_mixes", "summers", "ranges")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    BELL_MS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_BY_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_BY_MS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_BITS_FIELD_NUMBER: _ClassVar[int]
    DECAY_BITS_FIELD_NUMBER: _ClassVar[int]
    MUTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    AMONG_NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    ONLY_MIXES_FIELD_NUMBER: _ClassVar[int]
    SUMMERS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    opened_ms: int
    bell_ms: int
    publish_by_ms: int
    commit_by_ms: int
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    learning_rate_bits: int
    decay_bits: int
    muted: bool
    reason: str
    assigned: int
    mean: bool
    among_neighbours: bool
    neighbours: _containers.RepeatedScalarFieldContainer[str]
    only_mixes: bool
    summers: _containers.RepeatedScalarFieldContainer[str]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeSummers]
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., opened_ms: _Optional[int] = ..., bell_ms: _Optional[int] = ..., publish_by_ms: _Optional[int] = ..., commit_by_ms: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., learning_rate_bits: _Optional[int] = ..., decay_bits: _Optional[int] = ..., muted: _Optional[bool] = ..., reason: _Optional[str] = ..., assigned: _Optional[int] = ..., mean: _Optional[bool] = ..., among_neighbours: _Optional[bool] = ..., neighbours: _Optional[_Iterable[str]] = ..., only_mixes: _Optional[bool] = ..., summers: _Optional[_Iterable[str]] = ..., ranges: _Optional[_Iterable[_Union[RangeSummers, _Mapping]]] = ...) -> None: ...

class RangeSummers(_message.Message):
    __slots__ = ("places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, places: _Optional[_Iterable[int]] = ...) -> None: ...

class SummerAdded(_message.Message):
    __slots__ = ("round", "range", "peer_id")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    round: int
    range: int
    peer_id: str
    def __init__(self, round: _Optional[int] = ..., range: _Optional[int] = ..., peer_id: _Optional[str] = ...) -> None: ...

class SumsAsked(_message.Message):
    __slots__ = ("round", "learning_rate_bits", "authors", "ranges")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_BITS_FIELD_NUMBER: _ClassVar[int]
    AUTHORS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    round: int
    learning_rate_bits: int
    authors: _containers.RepeatedCompositeFieldContainer[SumAuthor]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeAsked]
    def __init__(self, round: _Optional[int] = ..., learning_rate_bits: _Optional[int] = ..., authors: _Optional[_Iterable[_Union[SumAuthor, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[RangeAsked, _Mapping]]] = ...) -> None: ...

class SumAuthor(_message.Message):
    __slots__ = ("author", "root", "samples")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    author: str
    root: bytes
    samples: int
    def __init__(self, author: _Optional[str] = ..., root: _Optional[bytes] = ..., samples: _Optional[int] = ...) -> None: ...

class RangeAsked(_message.Message):
    __slots__ = ("range", "silent")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    range: int
    silent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, range: _Optional[int] = ..., silent: _Optional[_Iterable[int]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class RoundCommitted(_message.Message):
    __slots__ = ("commit", "holders", "is_author")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    IS_AUTHOR_FIELD_NUMBER: _ClassVar[int]
    commit: Committed
    holders: _containers.RepeatedCompositeFieldContainer[Holders]
    is_author: bool
    def __init__(self, commit: _Optional[_Union[Committed, _Mapping]] = ..., holders: _Optional[_Iterable[_Union[Holders, _Mapping]]] = ..., is_author: _Optional[bool] = ...) -> None: ...

class Holders(_message.Message):
    __slots__ = ("peer_ids",)
    PEER_IDS_FIELD_NUMBER: _ClassVar[int]
    peer_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RoundSkipped(_message.Message):
    __slots__ = ("round", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("round", "reason", "number")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    number: int
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Evicted(_message.Message):
    __slots__ = ("reason", "wrong_results")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WRONG_RESULTS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    wrong_results: bool
    def __init__(self, reason: _Optional[str] = ..., wrong_results: _Optional[bool] = ...) -> None: ...

class CheckpointAsked(_message.Message):
    __slots__ = ("round", "step", "write", "second", "ticket", "room_bytes", "samples", "contributors", "contributors_in_all", "validation_loss", "validation_round")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    write: bool
    second: bool
    ticket: bytes
    room_bytes: int
    samples: int
    contributors: _containers.RepeatedCompositeFieldContainer[Contributor]
    contributors_in_all: int
    validation_loss: float
    validation_round: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., write: _Optional[bool] = ..., second: _Optional[bool] = ..., ticket: _Optional[bytes] = ..., room_bytes: _Optional[int] = ..., samples: _Optional[int] = ..., contributors: _Optional[_Iterable[_Union[Contributor, _Mapping]]] = ..., contributors_in_all: _Optional[int] = ..., validation_loss: _Optional[float] = ..., validation_round: _Optional[int] = ...) -> None: ...

class EvaluationAsked(_message.Message):
    __slots__ = ("round", "samples")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    round: int
    samples: int
    def __init__(self, round: _Optional[int] = ..., samples: _Optional[int] = ...) -> None: ...

class Contributor(_message.Message):
    __slots__ = ("peer_id", "name", "samples")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    name: str
    samples: int
    def __init__(self, peer_id: _Optional[str] = ..., name: _Optional[str] = ..., samples: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class RunFinished(_message.Message):
    __slots__ = ("head_round", "reason")
    HEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    head_round: int
    reason: str
    def __init__(self, head_round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LinkMessage(_message.Message):
    __slots__ = ("hello", "proof", "beat", "ack", "offers", "taken", "fetch", "cancel", "refusal", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: LinkHello
    proof: LinkProof
    beat: Beat
    ack: Ack
    offers: LinkOffers
    taken: Taken
    fetch: LinkFetch
    cancel: Cancel
    refusal: Refusal
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[LinkHello, _Mapping]] = ..., proof: _Optional[_Union[LinkProof, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., offers: _Optional[_Union[LinkOffers, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., fetch: _Optional[_Union[LinkFetch, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class LinkHello(_message.Message):
    __slots__ = ("protocol_version", "run_id", "public_key", "nonce", "instance", "head")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    public_key: bytes
    nonce: bytes
    instance: int
    head: Head
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., public_key: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., instance: _Optional[int] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class LinkProof(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("sent_ms", "reply", "head")
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    sent_ms: int
    reply: bool
    head: Head
    def __init__(self, sent_ms: _Optional[int] = ..., reply: _Optional[bool] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("part_bytes", "taken_ms")
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_MS_FIELD_NUMBER: _ClassVar[int]
    part_bytes: int
    taken_ms: int
    def __init__(self, part_bytes: _Optional[int] = ..., taken_ms: _Optional[int] = ...) -> None: ...

class LinkOffers(_message.Message):
    __slots__ = ("request", "offers")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    request: int
    offers: Offers
    def __init__(self, request: _Optional[int] = ..., offers: _Optional[_Union[Offers, _Mapping]] = ...) -> None: ...

class Offers(_message.Message):
    __slots__ = ("run_id", "sender", "offers", "idle")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    sender: str
    offers: _containers.RepeatedCompositeFieldContainer[OfferedPayload]
    idle: bool
    def __init__(self, run_id: _Optional[str] = ..., sender: _Optional[str] = ..., offers: _Optional[_Iterable[_Union[OfferedPayload, _Mapping]]] = ..., idle: _Optional[bool] = ...) -> None: ...

class OfferedPayload(_message.Message):
    __slots__ = ("round", "digest", "payload_bytes", "author_key", "samples", "signature", "part_list", "ranges")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_KEY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PART_LIST_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    round: int
    digest: bytes
    payload_bytes: int
    author_key: bytes
    samples: int
    signature: bytes
    part_list: bytes
    ranges: int
    def __init__(self, round: _Optional[int] = ..., digest: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., author_key: _Optional[bytes] = ..., samples: _Optional[int] = ..., signature: _Optional[bytes] = ..., part_list: _Optional[bytes] = ..., ranges: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class LinkFetch(_message.Message):
    __slots__ = ("request", "digest", "offset", "bytes")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    request: int
    digest: bytes
    offset: int
    bytes: int
    def __init__(self, request: _Optional[int] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request", "gently", "unless_soon")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    GENTLY_FIELD_NUMBER: _ClassVar[int]
    UNLESS_SOON_FIELD_NUMBER: _ClassVar[int]
    request: int
    gently: bool
    unless_soon: bool
    def __init__(self, request: _Optional[int] = ..., gently: _Optional[bool] = ..., unless_soon: _Optional[bool] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("request", "code", "reason")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Refusal.Code]
        NOT_HELD: _ClassVar[Refusal.Code]
        BUSY: _ClassVar[Refusal.Code]
        BAD_REQUEST: _ClassVar[Refusal.Code]
        WITHDRAWN: _ClassVar[Refusal.Code]
    UNSPECIFIED: Refusal.Code
    NOT_HELD: Refusal.Code
    BUSY: Refusal.Code
    BAD_REQUEST: Refusal.Code
    WITHDRAWN: Refusal.Code
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request: int
    code: Refusal.Code
    reason: str
    def __init__(self, request: _Optional[int] = ..., code: _Optional[_Union[Refusal.Code, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
