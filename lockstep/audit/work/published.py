"""The evidence that a coordinator at work shows in its status."""

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
from protocol.wire_pb2_grpc import CoordinatorStub


def shown_evidence(link: JoinLink, run_id: RunId, timeout_s: float) -> list[Evidence]:
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


def evidence_in(document: bytes, run_id: RunId) -> list[Evidence]:
    """The evidence in a status document; `RemoteProtocolError` for another document."""
    try:
        demoted = msgspec.json.decode(document)["audit"]["demoted"]
        return [_evidence(each, run_id) for each in demoted]
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
    return msgspec.convert({**about, "audits": audits}, Evidence)


def _audit(shown: Any) -> dict[str, Any]:
    audit = {
        "round": shown["round"],
        "digest": bytes.fromhex(shown["payload"]),
        "agreement": round(WHOLE * shown["agreement"]),
        "expected": round(WHOLE * shown["expected"]),
    }
    if source := shown.get("source"):
        digest = bytes.fromhex(source["payload"])
        audit["source"] = {"author": source["peer_id"], "round": source["round"], "digest": digest}
    return audit
