"""Errors with which a refused request ends."""

import pytest

from node.links.network import NotHeldError, WithdrawnError
from node.links.protocol_events import Refused
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import PeerId
from protocol.wire_pb2 import Refusal

PEER = PeerId("ab" * 16)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Refusal.NOT_HELD, NotHeldError),
        (Refusal.WITHDRAWN, WithdrawnError),
        (Refusal.BAD_REQUEST, RemoteProtocolError),
        (Refusal.BUSY, UnavailableError),
        (99, UnavailableError),
    ],
)
def test_a_refusal_is_an_error_of_its_kind_with_peer_and_reason(
    code: int, kind: type[Exception]
) -> None:
    error = Refused(1, code, "no reason").error(PEER)
    assert type(error) is kind
    assert str(error) == "abababab: no reason"
