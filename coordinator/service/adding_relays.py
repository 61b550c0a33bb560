"""The words of a relay that offers to add: its offer, the parts that it holds, what it has found.

What is said in its session goes to the machine, which alone decides whether the relay is heard
(`coordinator.machine.rules.sums.offering`).
"""

from coordinator.machine.events.inputs import Event, Heartbeat, Joined, SumsOffered
from coordinator.sequencer import Sequencer
from coordinator.service import node_messages
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId


def offer_of(joined: Joined, hello: wire.Hello) -> SumsOffered | None:
    """The offer in a relay's hello; None where there is none, or nobody could reach the relay."""
    if not (hello.sums and joined.addresses):
        return None
    return SumsOffered(joined.peer, joined.name, joined.instance)


async def beat(offer: SumsOffered, sequencer: Sequencer) -> None:
    """A relay with this offer is alive. One that the machine did not take, or has let go, offers
    again: the operator may have named it since.
    """
    known = sequencer.rounds.relays.get(offer.peer)
    await sequencer.submit(Heartbeat(offer.peer) if known else offer)


async def hear(peer: PeerId, message: wire.NodeMessage, sequencer: Sequencer) -> str:
    """Submit what a relay says of the rounds that it adds; of one that does not add it is dropped.
    Returns why the session must end; empty while it may go on.
    """
    rounds = sequencer.rounds
    if rounds.relays.get(peer) is None:
        return ""
    try:
        event: Event
        if message.WhichOneof("kind") == "summed":
            event = node_messages.summed(peer, message.summed, rounds)
        else:
            event = node_messages.event_of(peer, message)
        await sequencer.submit(event)
    except RemoteProtocolError as error:
        return str(error)
    return ""
