"""Announcements: nobody but the author makes one, and none means another round or payload."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.announcement import (
    announce,
    announcement_of,
    check_signature,
    offered_payload,
)
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import RunId, peer_id, sha256
from protocol.wire_pb2 import OfferedPayload

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
RUN = RunId("ab" * 16)
SAID = announce(KEY, RUN, 7, sha256(b"payload"), size=7, samples=3)


def test_an_announcement_comes_out_of_its_offer_and_names_its_author() -> None:
    said = announcement_of(OfferedPayload.FromString(offered_payload(SAID).SerializeToString()))
    assert said == SAID
    assert check_signature(said, RUN) == said.author == peer_id(public_bytes(KEY))


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 8},
        {"digest": sha256(b"another")},
        {"size": 8},
        {"samples": 4},
        {"author_key": public_bytes(OTHER)},
        {"author_key": b""},
        {"author_key": bytes(32)},
        {"signature": bytes(64)},
        {"signature": b""},
    ],
)
def test_no_other_announcement_passes_under_the_signature(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        check_signature(replace(SAID, **changes), RUN)  # type: ignore[arg-type]


def test_it_counts_in_its_own_run_alone() -> None:
    with pytest.raises(RemoteProtocolError):
        check_signature(SAID, RunId("cd" * 16))


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=40),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=40),
    st.binary(max_size=70),
)
def test_any_offer_is_read_or_refused(
    round: int, digest: bytes, number: int, key: bytes, signature: bytes
) -> None:
    offered = OfferedPayload(
        round=round,
        digest=digest,
        payload_bytes=number,
        samples=number,
        author_key=key,
        signature=signature,
    )
    with pytest.raises(RemoteProtocolError):
        check_signature(announcement_of(offered), RUN)
