"""The search for copies beside a replay: it finds who copies whom, and nobody frames the honest."""

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.copies.check import CopyCheck
from lockstep.audit.copies.watching import CopyWatch, uncompared
from protocol.audit.rule import COPIES, EARLY_ROUNDS
from protocol.codec.commits import Commit
from protocol.codec.evidence import CopySource, Evidence, open_evidence, sign_evidence, words
from protocol.codec.payload import Coefficients, decode
from protocol.errors import DivergedError, UnavailableError
from protocol.ids import PeerId
from tests.lockstep.audit.copies.post import INFO, SHAPE, SPEC, A, B, C, D, Post

HONEST_ROUNDS = EARLY_ROUNDS
NOTHING: frozenset[bytes] = frozenset()


class Watched(Post):
    """A log that is watched as it grows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.found: list[Evidence] = []
        self.suspects = set[PeerId]()
        self.path = path / "copies.json"
        self.watch = self.start()

    def start(self) -> CopyWatch:
        """A watch that begins, or goes on with the file of an earlier one."""
        return CopyWatch(INFO, secret=b"s", tell=self.found.append, path=self.path)

    async def add(self, sent: dict[PeerId, Coefficients | bytes], restarts: int = 0) -> Commit:
        commit = self.commit(sent)
        self.suspects = await self.watch.look(commit, frozenset(), self.read, restarts=restarts)
        return commit

    async def honest(self, rounds: int, *authors: PeerId) -> None:
        for _ in range(rounds):
            await self.add({author: self.work() for author in authors})

    def body(self, author: PeerId, back: int = 1) -> Coefficients:
        """What an author sent some rounds ago."""
        sent = self.sent(len(self.commits) - back, author)
        return decode(self.payloads[sent.digest], SHAPE)[1]


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    found = Watched(tmp_path)
    await found.honest(HONEST_ROUNDS, A, B, C)
    assert not found.found
    assert not found.suspects
    return found


async def checked(watched: Watched, evidence: Evidence) -> CopyCheck:
    """The evidence, compared by somebody else from the first round on."""
    check = CopyCheck([evidence])
    for commit in watched.commits:
        await check.before(commit, frozenset(), watched.read)
    return check


@pytest.mark.parametrize("part", [1.0, 0.5])
async def test_an_author_that_sends_anothers_last_payload_is_found_after_three(
    watched: Watched, part: float
) -> None:
    for count in range(COPIES):
        assert not watched.found, count
        copied = watched.near(watched.body(A), part)
        await watched.add({A: watched.work(), B: copied, C: watched.work()})
    (evidence,) = watched.found
    assert (evidence.author, evidence.finding) == (B, "copied work")
    assert [audit.source.author for audit in evidence.audits if audit.source] == [A] * COPIES
    assert words(evidence).startswith(f"work audit: {100 * part:.0f} % of it copied from 00000000")
    assert open_evidence(sign_evidence(evidence, Ed25519PrivateKey.generate()))[1] == evidence
    check = await checked(watched, evidence)
    assert (check.checked, check.unchecked) == (COPIES, 0)
    document = watched.watch.document()
    assert [each["peer_id"] for each in document["found"]] == [B]
    assert document["payloads"] == 3 * len(watched.commits)


async def test_an_author_that_repeats_itself_is_found_and_its_oldest_payload_named(
    watched: Watched,
) -> None:
    stale = watched.body(B)
    for _ in range(COPIES):
        await watched.add({A: watched.work(), B: stale, C: watched.work()})
    (evidence,) = watched.found
    source = watched.sent(HONEST_ROUNDS - 1, B)
    named = CopySource(source.author, source.round, source.digest)
    assert [audit.source for audit in evidence.audits] == [named] * COPIES
    assert "from its own earlier payloads" in words(evidence)
    assert (await checked(watched, evidence)).checked == COPIES


async def test_the_bytes_of_another_are_found_at_once_in_their_own_round(
    watched: Watched,
) -> None:
    await watched.honest(1, A, B)
    theirs = watched.payloads[watched.sent(HONEST_ROUNDS, A).digest]
    commit = watched.commit({A: theirs, C: theirs})
    assert commit.entries[0].digest == commit.entries[1].digest
    await watched.watch.look(commit, frozenset(), watched.read, restarts=0)
    assert {each.author for each in watched.found} == {A, C}, "both send bytes of an earlier round"
    for evidence in watched.found:
        assert (await checked(watched, evidence)).checked == 1


async def test_equal_digests_of_one_round_blame_whom_the_header_does_not_name(
    watched: Watched,
) -> None:
    own = watched.work()
    honest = watched.commit({A: own})
    watched.commits.pop()
    bytes_of_a = watched.payloads[honest.entries[0].digest]
    await watched.add({A: bytes_of_a, B: bytes_of_a, C: watched.work()})
    (evidence,) = watched.found
    assert evidence.author == B
    assert (await checked(watched, evidence)).checked == 1


async def test_likeness_within_a_round_names_both_and_blames_nobody(watched: Watched) -> None:
    for _ in range(2 * COPIES):
        own = watched.work()
        await watched.add({A: own, B: own, C: watched.work()})
        assert watched.suspects == {A, B}
        (pair,) = watched.watch.twins
        assert ({pair.one.author, pair.other.author}, pair.likeness) == ({A, B}, 1.0)
    assert not watched.found
    (pair,) = watched.watch.document()["alike"]
    assert pair["peers"] == [A, B]
    assert pair["rounds"] == 2 * COPIES


async def test_nobody_frames_an_author_whose_payload_was_left_out(watched: Watched) -> None:
    """What is left out goes back into the momentum and comes again, though another has sent it."""
    for _ in range(2 * COPIES):
        left_out = watched.work()
        await watched.add({B: left_out, C: watched.work()})
        await watched.add({A: watched.near(left_out, 0.8), B: watched.work(), C: watched.work()})
    assert not watched.found


async def test_nobody_frames_an_author_whose_payload_comes_back_two_rounds_later(
    watched: Watched,
) -> None:
    """Where rounds overlap, the next payload is made before the one that is left out is back."""
    for _ in range(2 * COPIES):
        left_out = watched.work()
        await watched.honest(1, B, C)
        await watched.add({A: watched.work(), B: left_out, C: watched.work()})
        await watched.add({A: watched.near(left_out, 0.8), B: watched.work(), C: watched.work()})
    assert not watched.found


async def test_copies_of_rounds_that_are_replayed_again_are_forgotten(watched: Watched) -> None:
    stale = watched.body(B)
    for _ in range(COPIES - 1):
        await watched.add({A: watched.work(), B: stale, C: watched.work()})
    watched.watch.drop()
    for commit in watched.commits[-COPIES:]:  # the first copy has nothing before it any more
        await watched.watch.look(commit, frozenset(), watched.read, restarts=0)
    assert watched.watch.document()["payloads"] == 3 * len(watched.commits), "each counts once"
    assert not watched.found
    await watched.add({A: watched.work(), B: stale, C: watched.work()})
    assert [each.author for each in watched.found] == [B], "two came again, and one more"


async def test_nobody_frames_an_author_by_copying_it_in_its_own_round(watched: Watched) -> None:
    for _ in range(2 * COPIES):
        own = watched.work()
        await watched.add({A: own, B: own, C: watched.work()})
        again = watched.near(own, 0.5)  # whatever is left of it
        await watched.add({A: again, B: watched.work(), C: watched.work()})
    assert all(each.finding == "copied work" for each in watched.found)
    sources = [audit.source for each in watched.found for audit in each.audits if audit.source]
    assert all(source.author != B for source in sources)


async def test_honest_authors_are_left_alone(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.honest(60, A, B, C, D)
    assert not watched.found
    assert watched.watch.document()["alike"] == []
    assert 0 < watched.watch.document()["usual"] < 0.05


async def test_early_rounds_may_be_alike(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for _ in range(EARLY_ROUNDS):
        own = watched.work()
        await watched.add({A: own, B: watched.near(own, 0.6)})
        assert not watched.suspects
    assert not watched.found


@pytest.mark.parametrize(("part", "count"), [(1.0, 1), (0.9, 0)])
async def test_exact_copies_alone_are_found_in_the_first_rounds(
    tmp_path: Path, part: float, count: int
) -> None:
    watched = Watched(tmp_path)
    await watched.honest(1, A, B, C)
    stale = watched.body(B)
    for _ in range(COPIES):
        assert not watched.found
        await watched.add({A: watched.work(), B: watched.near(stale, part), C: watched.work()})
    assert [each.author for each in watched.found] == [B] * count
    for evidence in watched.found:
        assert (await checked(watched, evidence)).checked == COPIES


async def test_turned_signs_make_a_suspect_from_the_first_round_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    own = watched.work()
    turned = Coefficients(own.counts, own.indices, -own.values)
    honest = {author: watched.near(own, 0.9) for author in (A, B, D)}
    await watched.add({**honest, C: turned})
    assert watched.suspects == {C}
    assert not watched.found, "it proves nothing: the others may have turned theirs"


async def test_a_payload_that_is_not_there_judges_nothing_and_is_looked_at_again(
    watched: Watched,
) -> None:
    commit = watched.commit({A: watched.work(), B: watched.body(A), C: watched.work()})
    kept = watched.payloads.pop(commit.entries[2].digest)
    before = watched.watch.document()
    with pytest.raises(UnavailableError):
        await watched.watch.look(commit, frozenset(), watched.read, restarts=0)
    assert watched.watch.document() == before
    watched.payloads[commit.entries[2].digest] = kept
    for _ in range(2):  # the same commit twice counts once
        await watched.watch.look(commit, frozenset(), watched.read, restarts=0)
    assert watched.watch.document()["payloads"] == before["payloads"] + 3
    assert not watched.found


async def test_void_payloads_and_those_that_do_not_decode_count_for_nothing(
    watched: Watched,
) -> None:
    for _ in range(COPIES):
        commit = watched.commit({A: watched.work(), B: watched.body(A), C: b"nothing"})
        void = frozenset({commit.entries[1].digest})
        await watched.watch.look(commit, void, watched.read, restarts=0)
    assert not watched.found


async def test_a_run_that_goes_on_from_a_checkpoint_may_repeat_its_rounds(
    watched: Watched,
) -> None:
    for restarts in range(1, 2 * COPIES):
        again = {author: watched.body(author) for author in (A, B, C)}
        await watched.add({**again}, restarts=restarts)
    assert not watched.found


async def test_a_later_start_goes_on_with_the_copies_of_the_earlier_one(watched: Watched) -> None:
    stale = watched.body(B)
    for _ in range(COPIES - 1):
        await watched.add({A: watched.work(), B: stale, C: watched.work()})
    watched.watch = watched.start()
    await watched.honest(1, A, C)
    await watched.add({A: watched.work(), B: stale, C: watched.work()})
    assert not watched.found, "the payloads before the start are forgotten"
    await watched.add({A: watched.work(), B: stale, C: watched.work()})
    assert [each.author for each in watched.found] == [B]


async def test_made_up_evidence_does_not_come_out(watched: Watched) -> None:
    for _ in range(COPIES):
        await watched.add({A: watched.work(), B: watched.body(A), C: watched.work()})
    (evidence,) = watched.found
    with pytest.raises(DivergedError, match=r"as 100\.00% copied, the comparison says 0\.\d\d%"):
        await checked(watched, reversed_roles(watched, evidence))
    made_up = msgspec.structs.replace(evidence, author=D)
    with pytest.raises(DivergedError, match="which the log does not have"):
        await checked(watched, made_up)
    late = CopyCheck([evidence])
    await late.before(watched.commits[-1], frozenset(), watched.read)
    assert (late.checked, late.unchecked) == (0, COPIES)


def reversed_roles(watched: Watched, evidence: Evidence) -> Evidence:
    """Evidence that accuses the copied author of having copied what the copier sent before."""
    audits = []
    for audit in evidence.audits:
        mine, theirs = watched.sent(audit.round, A), watched.sent(audit.round - 1, B)
        source = CopySource(theirs.author, theirs.round, theirs.digest)
        audits.append(msgspec.structs.replace(audit, digest=mine.digest, source=source))
    return msgspec.structs.replace(evidence, author=A, audits=tuple(audits))


def test_copies_are_told_where_payloads_are_signs() -> None:
    def of(name: str) -> str:
        algorithm = SPEC.algorithm.model_copy(update={"name": name})
        return uncompared(SPEC.model_copy(update={"algorithm": algorithm}))

    assert (of("demo"), of("local_steps")) == ("", "")
    assert "of gossip-adam hold parameters" in of("gossip-adam")
