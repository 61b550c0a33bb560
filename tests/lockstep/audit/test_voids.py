"""An audit holds a record to its voids: each that is obeyed stands in the chain, and no other."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.voids import VoidBook
from protocol import wire_pb2 as wire
from protocol.codec.chain import Void, entry_digest, sign_entry
from protocol.codec.commits import Commit, Entry, commit_digest, genesis_digest
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.runfile import run_id
from tests.support.tiny import tiny_spec

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SPEC = tiny_spec()
RUN = run_id(SPEC, public_bytes(KEY))
PAYLOAD, OTHER = Digest(b"p" * 32), Digest(b"o" * 32)


def commit(round: int, previous: Digest, payload: Digest = PAYLOAD) -> Commit:
    return Commit(RUN, round, round, (Entry(PeerId("ab" * 16), payload, 1, 1, 1),), 1, 2, previous)


def told(void: Void) -> wire.ChainEntry:
    signed = sign_entry(void, KEY)
    return wire.ChainEntry(body=signed.body, signature=signed.signature)


FIRST = commit(0, genesis_digest(RUN))
VOID = Void(RUN, 0, PAYLOAD, "nobody has it", commit_digest(FIRST))
SECOND = commit(1, entry_digest(VOID), OTHER)


@pytest.fixture
def book() -> VoidBook:
    return VoidBook(RunInfo(SPEC, RUN, public_bytes(KEY)))


def test_a_void_is_obeyed_and_then_met_in_the_chain(book: VoidBook) -> None:
    assert book.obey(FIRST, [told(VOID)]) == {PAYLOAD}
    assert book.ahead == [0]
    assert book.walk(commit_digest(FIRST), [told(VOID)], SECOND) == entry_digest(VOID)
    assert (book.ahead, book.found) == ([], 1)
    assert book.obey(SECOND, []) == set()


def test_a_void_that_its_commit_did_not_announce_is_found(book: VoidBook) -> None:
    book.obey(FIRST, [])
    with pytest.raises(RemoteProtocolError, match="only voids that their commits announce"):
        book.walk(commit_digest(FIRST), [told(VOID)], SECOND)


def test_a_void_that_is_left_out_of_the_chain_is_found(book: VoidBook) -> None:
    book.obey(FIRST, [told(VOID)])
    with pytest.raises(RemoteProtocolError, match="does not follow the entries before it"):
        book.walk(commit_digest(FIRST), [], SECOND)


def test_a_void_of_another_commits_payload_is_refused(book: VoidBook) -> None:
    for void in (
        Void(RUN, 1, PAYLOAD, "nobody has it", commit_digest(FIRST)),
        Void(RUN, 0, OTHER, "nobody has it", commit_digest(FIRST)),
    ):
        with pytest.raises(RemoteProtocolError, match="expected voids of payloads of round 0"):
            book.obey(FIRST, [told(void)])
