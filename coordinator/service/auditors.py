"""The words of an auditor in its session, which is that of a relay: the states that it has replayed
to, the payloads that it holds, and evidence against authors that do not do their work and summers
that signed a wrong sum.
"""

from coordinator.machine.events.inputs import Audited, Holding
from coordinator.sequencer import Sequencer
from coordinator.service import node_messages
from coordinator.service.evidence import EvidenceDesk
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId


async def hear(
    peer: PeerId, message: wire.NodeMessage, sequencer: Sequencer, evidence: EvidenceDesk
) -> str:
    """Submit what a relay says if the operator has named it an auditor; from others it is dropped.
    Returns why the session must end; empty while it may go on.
    """
    if peer not in sequencer.rounds.state.verdicts.auditors:
        return ""
    try:
        if message.WhichOneof("kind") == "evidence":
            await evidence.take(peer, message.evidence)
            return ""
        if message.WhichOneof("kind") == "wrong_sum":
            await evidence.refute(peer, message.wrong_sum)
            return ""
        event = node_messages.event_of(peer, message)
        if isinstance(event, Audited | Holding):
            await sequencer.submit(event)
    except RemoteProtocolError as error:
        return str(error)
    return ""
