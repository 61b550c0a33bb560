"""An audit holds a record to its voids, each of which stands in the chain if it is obeyed, and no
other; and its rates to the run file and the operator's signed changes.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.ledger import ChainLedger
from protocol import wire_pb2 as wire
from protocol.codec.chain import Reschedule, Void, entry_digest, sign_entry
from protocol.codec.commits import Commit, Entry, commit_digest, genesis_digest
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec, ScheduleSpec, run_id
from protocol.schedule import float32_bits, in_force, scalars
from tests.support.tiny import tiny_spec

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SPEC = tiny_spec()
RUN = run_id(SPEC, public_bytes(KEY))
PAYLOAD, OTHER = Digest(b"p" * 32), Digest(b"o" * 32)


def commit_of(round: int, previous: Digest, payload: Digest = PAYLOAD) -> Commit:
    return Commit(RUN, round, round, (Entry(PeerId("ab" * 16), payload, 1, 1, 1),), 1, 2, previous)


def told(void: Void | Reschedule) -> wire.ChainEntry:
    signed = sign_entry(void, KEY)
    return wire.ChainEntry(body=signed.body, signature=signed.signature)


FIRST = commit_of(0, genesis_digest(RUN))
VOID = Void(RUN, 0, PAYLOAD, "nobody has it", commit_digest(FIRST))
SECOND = commit_of(1, entry_digest(VOID), OTHER)


@pytest.fixture
def ledger() -> ChainLedger:
    return ChainLedger(RunInfo(SPEC, RUN, public_bytes(KEY)))


def test_a_void_is_obeyed_and_then_met_in_the_chain(ledger: ChainLedger) -> None:
    assert ledger.obey(FIRST, [told(VOID)]) == {PAYLOAD}
    assert ledger.ahead == [0]
    assert ledger.walk(commit_digest(FIRST), [told(VOID)], SECOND) == entry_digest(VOID)
    assert (ledger.ahead, ledger.found) == ([], 1)
    assert ledger.obey(SECOND, []) == set()


def test_a_void_that_its_commit_did_not_announce_is_found(ledger: ChainLedger) -> None:
    ledger.obey(FIRST, [])
    with pytest.raises(RemoteProtocolError, match="only voids that their commits announce"):
        ledger.walk(commit_digest(FIRST), [told(VOID)], SECOND)


def test_a_void_that_is_left_out_of_the_chain_is_found(ledger: ChainLedger) -> None:
    ledger.obey(FIRST, [told(VOID)])
    with pytest.raises(RemoteProtocolError, match="does not follow the entries before it"):
        ledger.walk(commit_digest(FIRST), [], SECOND)


def test_a_void_of_another_commits_payload_is_refused(ledger: ChainLedger) -> None:
    for void in (
        Void(RUN, 1, PAYLOAD, "nobody has it", commit_digest(FIRST)),
        Void(RUN, 0, OTHER, "nobody has it", commit_digest(FIRST)),
    ):
        with pytest.raises(RemoteProtocolError, match="expected voids of payloads of round 0"):
            ledger.obey(FIRST, [told(void)])


# ---- rates

LONG = RunSpec(schedule=ScheduleSpec(steps=100, weight_decay=0.1))
CHANGE = Reschedule(RUN, 4, 5, 200, float32_bits(0.01), genesis_digest(RUN))


def meet(ledger: ChainLedger, change: Reschedule) -> None:
    ledger.walk(change.previous, [told(change)])


def rated(step: int, schedule: ScheduleSpec, factor: float = 1) -> Commit:
    changed = schedule.model_copy(update={"learning_rate": schedule.learning_rate * factor})
    return Commit(RUN, step, step, (), *scalars(changed, step), genesis_digest(RUN))


def test_rates_of_the_run_file_and_of_signed_changes_have_no_flaw() -> None:
    ledger = ChainLedger(RunInfo(LONG, RUN, public_bytes(KEY)))
    for step in range(5):
        assert ledger.flaw(rated(step, LONG.schedule)) == ""
    meet(ledger, CHANGE)
    for step in (5, 150, 199):
        assert ledger.flaw(rated(step, in_force(LONG.schedule, [CHANGE]))) == ""
    assert ledger.schedules == 1


def test_a_rate_that_nobody_signed_is_a_flaw() -> None:
    ledger = ChainLedger(RunInfo(LONG, RUN, public_bytes(KEY)))
    assert "its learning rate is" in ledger.flaw(rated(3, LONG.schedule, factor=1.01))
    assert "its learning rate is" in ledger.flaw(rated(3, in_force(LONG.schedule, [CHANGE])))
    meet(ledger, CHANGE)
    assert "its learning rate is" in ledger.flaw(rated(5, LONG.schedule))


def test_a_step_beyond_the_length_of_the_run_is_a_flaw() -> None:
    ledger = ChainLedger(RunInfo(LONG, RUN, public_bytes(KEY)))
    assert "beyond the 100 steps" in ledger.flaw(rated(100, LONG.schedule))


def test_a_walk_that_goes_on_in_the_middle_judges_from_the_next_change_on() -> None:
    ledger = ChainLedger(RunInfo(LONG, RUN, public_bytes(KEY)))
    ledger.resume((), 0, 50)
    assert ledger.flaw(rated(60, LONG.schedule, factor=2)) == ""
    meet(ledger, CHANGE)
    assert ledger.flaw(rated(61, LONG.schedule)) != ""
    ledger.resume((), 0, -1)
    assert ledger.flaw(rated(0, LONG.schedule)) == ""
