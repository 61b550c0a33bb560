"""Evidence as others find it: in the status of a coordinator at work, or in its journal."""

from dataclasses import dataclass
from typing import Any

import grpc
import msgspec

from lockstep.service.contact import open_channel
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from protocol.border.text import clean
from protocol.codec.decoding import UNREADABLE
from protocol.codec.evidence import WHOLE, Evidence
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import RunId
from protocol.sums.signed import WRONG_SUM
from protocol.wire_pb2_grpc import CoordinatorStub


@dataclass(frozen=True, slots=True)
class Accusation:
    """Evidence by which an author has lost its standing."""

    evidence: Evidence
    public_key: bytes
    """The auditor's, raw ed25519."""


def shown_evidence(link: JoinLink, run_id: RunId, timeout_s: float) -> list[Accusation]:
    """The newest evidence by which keys have lost their standing; blocks.

    Raises `UnavailableError`, `RemoteProtocolError`.
    """
    with open_channel(link, timeout_s) as channel:
        try:
            reply = CoordinatorStub(channel).GetStatus(wire.GetStatusRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            reason = clean(error.details() or error.code().name.lower())
            raise UnavailableError(
                f"expected the status of the coordinator at {link.address}: {reason}"
            ) from None
    return evidence_in(reply.json, run_id)


def evidence_in(document: bytes, run_id: RunId) -> list[Accusation]:
    """The evidence against authors in a status document; `RemoteProtocolError` for what is none."""
    try:
        demoted = msgspec.json.decode(document)["audit"]["demoted"]
        return [
            Accusation(_evidence(each, run_id), bytes.fromhex(each["auditor_key"]))
            for each in demoted
            if each["finding"] != WRONG_SUM
        ]
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        *UNREADABLE,
    ) as error:
        raise RemoteProtocolError(
            f"expected evidence in the coordinator's status, got {type(error).__name__}: {error}"
        ) from None


def _evidence(demoted: Any, run_id: RunId) -> Evidence:
    audits = [_audit(audit) for audit in demoted["audits"]]
    about = {"run_id": run_id, "author": demoted["peer_id"], "finding": demoted["finding"]}
    spread = round(WHOLE * demoted.get("spread", 0))
    return msgspec.convert({**about, "audits": audits, "spread": spread}, Evidence)


def _audit(shown: Any) -> dict[str, Any]:
    audit = {
        "round": shown["round"],
        "digest": bytes.fromhex(shown["payload"]),
        "agreement": round(WHOLE * shown["agreement"]),
        "expected": round(WHOLE * shown["expected"]),
        "compared": shown.get("compared", 0),
        "companions": [_companion(each) for each in shown.get("companions", ())],
    }
    if draw := shown.get("draw"):
        audit["draw"] = (bytes.fromhex(draw["lot"]), round(WHOLE * draw["share"]))
    if cross := shown.get("cross"):
        audit["cross"] = (cross["differ"], cross["own"])
    if source := shown.get("source"):
        digest = bytes.fromhex(source["payload"])
        audit["source"] = {"author": source["peer_id"], "round": source["round"], "digest": digest}
    return audit


def _companion(shown: Any) -> tuple[Any, ...]:
    digest = bytes.fromhex(shown["payload"])
    return shown["peer_id"], digest, round(WHOLE * shown["agreement"]), shown["compared"]
