"""The acts of a run's operator, and their chain. Pure.

Each act is an event of the journal and carries the digest of the act before it:

    digest(n) = SHA-256(act n, time, digest(n-1))      digest(0) = SHA-256("acts of", run)

So anybody who kept the newest digest finds every act that was changed, taken out or put in since.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from protocol.codec.chain import STEPS_MAX
from protocol.codec.evidence import EVIDENCE_BYTES_MAX, read_evidence
from protocol.codec.evidence import words as found
from protocol.handshake import KEY_BYTES, SIGNATURE_BYTES
from protocol.ids import Digest, PeerId, RunId, peer_id, sha256
from protocol.sums.signed import WRONG_SUM_BYTES_MAX, read_wrong_sum
from protocol.sums.signed import words as wrong_sum
from protocol.words import quantity

REASON_MAX = 200
"""Characters of a reason: it is sent to nodes, whose own bound is 256 bytes of UTF-8."""

NOTICE_MAX = 1000
"""Characters of a notice; nodes keep 1024."""

TOKEN_USES_MAX = 4096
"""Keys that one token may admit, as many as a run may have members."""

AWAY_S_MAX = 30 * 86_400
"""Longest time for which a removed node is kept away; a ban has no end."""

Reason: TypeAlias = Annotated[str, Meta(max_length=REASON_MAX)]
Key: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Target: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,32}$")]
Mode: TypeAlias = Literal["open", "token", "list"]


class _Act(msgspec.Struct, frozen=True, tag=str.lower, forbid_unknown_fields=True):
    """One act; its tag is the word of the command."""


class Pause(_Act, frozen=True):
    """No further round opens."""

    reason: Reason = ""


class Resume(_Act, frozen=True):
    """Rounds open again."""


class Finish(_Act, frozen=True):
    """The run ends after the rounds that are open."""

    reason: Reason = ""


class Extend(_Act, frozen=True):
    """The run gets further steps; one that has ended goes on."""

    steps: Annotated[int, Meta(ge=1, le=STEPS_MAX)]


class Rate(_Act, frozen=True):
    """Another largest learning rate holds from the next commit on."""

    learning_rate: Annotated[float, Meta(gt=0, le=10)]


class Checkpoint(_Act, frozen=True):
    """A member publishes the model as soon as it can."""


class Evict(_Act, frozen=True):
    """A member loses its place and is kept away for some time."""

    peer: Key
    reason: Reason = ""
    away_s: Annotated[int, Meta(ge=0, le=AWAY_S_MAX)] = 600


class Ban(_Act, frozen=True):
    """A key or a host is refused until the ban is lifted; see `coordinator.service.admittance`."""

    target: Target
    reason: Reason = ""


class Unban(_Act, frozen=True):
    """A ban is lifted."""

    target: Target


class Vouch(_Act, frozen=True):
    """A key decides in a run that is open to the public."""

    peer: Key


class Demote(_Act, frozen=True):
    """A key loses its standing by an auditor's evidence, which its coordinator puts into the chain;
    see `coordinator.machine.rules.demotion`.
    """

    body: Annotated[bytes, Meta(max_length=EVIDENCE_BYTES_MAX)]
    """Canonical bytes of the evidence."""
    public_key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """The auditor's."""
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Reject(_Act, frozen=True):
    """An auditor's evidence changes no standing, because it proves nothing by the published rule
    (`protocol.audit.rule`); its coordinator puts it into the chain, and it counts against the
    auditor.
    """

    body: Annotated[bytes, Meta(max_length=EVIDENCE_BYTES_MAX)]
    """Canonical bytes of the evidence."""
    public_key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """The auditor's."""
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    reason: Reason
    """What it lacks, in a sentence."""


class Refute(_Act, frozen=True):
    """A key loses its standing by a wrong sum that it signed, which an auditor has added again; its
    coordinator puts that into the chain (`coordinator.machine.rules.sums.refuting`).
    """

    auditor: Key
    body: Annotated[bytes, Meta(max_length=WRONG_SUM_BYTES_MAX)]
    """Canonical bytes of the evidence (`protocol.sums.signed`)."""


class Appoint(_Act, frozen=True):
    """The word of a key on states is final from now on (`coordinator.machine.rules.auditing`)."""

    peer: Key


class Dismiss(_Act, frozen=True):
    """The word of an auditor counts no more."""

    peer: Key


class Announce(_Act, frozen=True):
    """A notice to every node."""

    text: Annotated[str, Meta(min_length=1, max_length=NOTICE_MAX)]


class Admit(_Act, frozen=True):
    """Another rule says from now on which keys the run admits."""

    mode: Mode


class Allow(_Act, frozen=True):
    """A key is put on the list of those that are admitted."""

    peer: Key


class Disallow(_Act, frozen=True):
    """A key is taken off the list, and is not counted as admitted any more."""

    peer: Key


class Token(_Act, frozen=True):
    """A token that admits keys; the secret itself stays with its maker."""

    name: Name
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the secret."""
    uses: Annotated[int, Meta(ge=1, le=TOKEN_USES_MAX)] = 1
    expires_s: Annotated[int, Meta(ge=0, lt=2**40)] = 0
    """Seconds since 1970 by the wall clock; 0: it does not expire."""
    vouches: bool = False


class Revoke(_Act, frozen=True):
    """A token admits nobody any more; keys that it admitted stay admitted."""

    name: Name


Act: TypeAlias = (
    Pause
    | Resume
    | Finish
    | Extend
    | Rate
    | Checkpoint
    | Evict
    | Ban
    | Unban
    | Vouch
    | Demote
    | Reject
    | Refute
    | Appoint
    | Dismiss
    | Announce
    | Admit
    | Allow
    | Disallow
    | Token
    | Revoke
)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The operator did `act` at `given_s`, seconds since 1970 by the wall clock."""

    act: Act
    given_s: int
    previous: Digest
    """Digest of the act before this one."""
    digest: Digest


@dataclass(frozen=True, slots=True)
class Vouched:
    """The operator lets a key decide."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Salted:
    """The secret by which witnesses are drawn, 32 random bytes; only the first one counts."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class TokenShown:
    """A node with a proven key has shown a token, at `shown_s` by the wall clock (seconds since
    1970).
    """

    peer: PeerId
    digest: Digest
    """SHA-256 of the token."""
    shown_s: int


def first_digest(run_id: RunId) -> Digest:
    """The digest that the first act of a run follows."""
    return sha256(b"acts of " + run_id.encode())


def act_digest(act: Act, given_s: int, previous: Digest) -> Digest:
    """The digest of an act that follows `previous`."""
    return sha256(msgspec.msgpack.encode((act, given_s, previous)))


def ordered(act: Act, given_s: int, previous: Digest) -> Ordered:
    """The event of an act that follows `previous`."""
    return Ordered(act, given_s, previous, act_digest(act, given_s, previous))


def flaw(event: Ordered, previous: Digest) -> str:
    """Why the event is not the act that follows `previous`; empty when it is."""
    if event.previous != previous:
        return (
            f"expected an act that follows {previous.hex()[:16]}, got one that follows "
            f"{event.previous.hex()[:16]}"
        )
    if (digest := act_digest(event.act, event.given_s, event.previous)) != event.digest:
        return f"expected the digest {digest.hex()[:16]} of this act, got {event.digest.hex()[:16]}"
    return ""


def kind_of(act: Act) -> str:
    """The word of an act's command."""
    return type(act).__name__.lower()


def words(act: Act) -> str:
    """An act in words, for logs and the audit."""
    match act:
        case Pause(reason) | Finish(reason):
            return _because(f"{kind_of(act)} the run", reason)
        case Resume():
            return "resume the run"
        case Extend(steps):
            return f"extend the run by {quantity(steps, 'step')}"
        case Rate(learning_rate):
            return f"set the largest learning rate to {learning_rate:g}"
        case Checkpoint():
            return "publish a checkpoint"
        case Evict(peer, reason, away_s):
            return _because(f"evict {peer} for {away_s} s", reason)
        case Ban(target, reason):
            return _because(f"ban {target}", reason)
        case Unban(target):
            return f"lift the ban of {target}"
        case Vouch(peer):
            return f"vouch for {peer}"
        case Demote(body, public_key):
            return _demotion(body, public_key)
        case Reject(body, public_key, _, reason):
            return _rejection(body, public_key, reason)
        case Refute(auditor, body):
            return _refutation(auditor, body)
        case Appoint(peer):
            return f"name {peer} an auditor, whose word is final"
        case Dismiss(peer):
            return f"take {peer} off the auditors"
        case Announce(text):
            return f"announce: {text}"
        case Admit(mode):
            return f"admit: {mode}"
        case Allow(peer):
            return f"put {peer} on the list"
        case Disallow(peer):
            return f"take {peer} off the list"
        case Token(name, _, uses, _, vouches):
            keys = quantity(uses, "key")
            return f"create the token {name} for {keys}" + (", vouching" if vouches else "")
        case Revoke(name):
            return f"revoke the token {name}"


def public_words(act: Act) -> str:
    """An act in words for everybody: without hosts, names of tokens and the keys that are kept out
    or let in; empty for a notice, which is shown as one.
    """
    match act:
        case Announce():
            return ""
        case Ban(target):
            return f"ban a {'node' if is_key(target) else 'host'}"
        case Unban(target):
            return f"lift the ban of a {'node' if is_key(target) else 'host'}"
        case Allow():
            return "put a node on the list"
        case Disallow():
            return "take a node off the list"
        case Token(_, _, uses, _, vouches):
            return f"create a token for {quantity(uses, 'key')}" + (", vouching" if vouches else "")
        case Revoke():
            return "revoke a token"
        case _:
            return words(act)


def _demotion(body: bytes, public_key: bytes) -> str:
    evidence = read_evidence(body)
    return f"demote {evidence.author} by auditor {peer_id(public_key)}: {found(evidence)}"


def _rejection(body: bytes, public_key: bytes, reason: str) -> str:
    author = read_evidence(body).author
    return f"refuse the evidence of auditor {peer_id(public_key)} against {author}: {reason}"


def _refutation(auditor: str, body: bytes) -> str:
    evidence = read_wrong_sum(body)
    return f"demote {evidence.signed.summer} by auditor {auditor}: {wrong_sum(evidence)}"


def _because(words: str, reason: str) -> str:
    return f"{words}: {reason}" if reason else words


def is_key(target: str) -> bool:
    """Whether the target of a ban is a key, and not a host."""
    return len(target) == 32 and all(each in "0123456789abcdef" for each in target)


def key_of(text: str) -> PeerId:
    """A key whose form was checked when the act was decoded."""
    return PeerId(text)
