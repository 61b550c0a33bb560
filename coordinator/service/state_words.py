"""What members say of a state that they were asked about, and of their links; what they are told.

Every field that a stranger can write is bounded here, with the sender's name in the error.
"""

import math

from coordinator.machine.checkpoints.events import CheckpointSaid
from coordinator.machine.evaluation.events import AskEvaluation, Evaluated
from coordinator.machine.events import LinksMeasured
from coordinator.machine.run_state import RunState
from protocol import wire_pb2 as wire
from protocol.border.text import clean, require_plain
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, parse_digest, parse_peer_id
from protocol.limits import LOSS_NATS_MAX, VALIDATION_WINDOWS_MAX
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX, MeasuredLink
from protocol.runfile import RunSpec


def checkpoint_said(peer: PeerId, said: wire.CheckpointSaid) -> CheckpointSaid:
    """A member's word on a checkpoint; `RemoteProtocolError` when it is out of bounds."""
    require_plain(said.url, peer)
    if said.file_bytes >= 2**48:
        raise RemoteProtocolError(
            f"{peer}: expected a checkpoint below 2**48 bytes, got one of {said.file_bytes}"
        )
    failure = clean(said.failure)
    sha256 = Digest(b"") if failure else parse_digest(said.sha256)
    round, digest = _round(peer, said.round), said.state_digest
    return CheckpointSaid(peer, round, digest, sha256, said.file_bytes, said.url, failure)


def evaluated(peer: PeerId, said: wire.Evaluated) -> Evaluated:
    """A measured validation loss; `RemoteProtocolError` when it is out of bounds."""
    round, failure = _round(peer, said.round), clean(said.failure)
    if failure:
        return Evaluated(peer, round, 0.0, 0, b"", failure)
    if not (math.isfinite(said.loss) and 0 <= said.loss <= LOSS_NATS_MAX):
        raise RemoteProtocolError(
            f"{peer}: expected a validation loss from 0 to {LOSS_NATS_MAX:g} nats per token, got "
            f"{said.loss}"
        )
    if not 1 <= said.samples <= VALIDATION_WINDOWS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected a validation loss over 1 to {VALIDATION_WINDOWS_MAX} samples, got "
            f"one over {said.samples}"
        )
    data_sha256 = parse_digest(said.data_sha256) if said.data_sha256 else b""
    return Evaluated(peer, round, said.loss, said.samples, data_sha256)


def links_measured(peer: PeerId, said: wire.LinksMeasured) -> LinksMeasured:
    """What a member measures of its links; `RemoteProtocolError` when it is out of bounds."""
    if len(said.links) > LINKS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {LINKS_MAX} measured links, got {len(said.links)}"
        )
    others = [parse_peer_id(link.peer_id) for link in said.links]
    if others != sorted(set(others)) or peer in others:
        raise RemoteProtocolError(
            f"{peer}: expected links to other nodes, each once and sorted, got {len(others)} others"
        )
    for link in said.links:
        if link.round_trip_ms > ROUND_TRIP_MS_MAX or link.bit_per_second > BIT_S_MAX:
            raise RemoteProtocolError(
                f"{peer}: expected a round trip of at most {ROUND_TRIP_MS_MAX} ms at up to "
                f"{BIT_S_MAX} bit/s, got {link.round_trip_ms} ms at {link.bit_per_second} bit/s"
            )
    links = zip(others, said.links, strict=True)
    return LinksMeasured(
        peer,
        tuple(
            MeasuredLink(other, link.round_trip_ms, link.bit_per_second) for other, link in links
        ),
    )


def evaluation_asked(ask: AskEvaluation) -> wire.CoordinatorMessage:
    """The request to measure the validation loss of a state."""
    asked = wire.EvaluationAsked(round=ask.round, samples=ask.samples)
    return wire.CoordinatorMessage(evaluation=asked)


def add_course(reply: wire.CoordinatorMessage, state: RunState, spec: RunSpec) -> None:
    """Say in the reply to a heartbeat how long the run is now, and how well it learns."""
    reply.heartbeat.steps = state.schedule(spec).steps
    if newest := state.evaluation.newest:
        reply.heartbeat.validation_loss = newest.loss
        reply.heartbeat.validation_round = newest.round


def _round(peer: PeerId, round: int) -> int:
    if round < 0:
        raise RemoteProtocolError(f"{peer}: expected a round of at least 0, got {round}")
    return round
