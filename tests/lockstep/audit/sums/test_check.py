"""Rounds with sums are replayed from these, and ranges are added again: a wrong one is named."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace as replace_struct

from lockstep.audit import follower as following
from lockstep.audit.copies.watching import CopyWatch
from lockstep.audit.follower import Follower
from lockstep.audit.records import Named
from lockstep.audit.sums.adding import RangeAdder
from lockstep.audit.sums.auditing import SumsAudit
from lockstep.audit.sums.parts import PayloadPart, WholePayloads
from lockstep.audit.work.authors import AuthorAudit
from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.service.keys import load_or_create_key
from protocol import wire_pb2 as wire
from protocol.codec.commits import commit_digest, sign_commit
from protocol.codec.evidence import Evidence
from protocol.codec.sums import decode_sums, encode_sums
from protocol.errors import DivergedError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, peer_id, sha256
from protocol.sums.asked import question_behind, sign_sum
from protocol.sums.ranges import ranges_of
from protocol.sums.signed import SumSigned, WrongSum
from tests.lockstep.audit.runs import STEPS
from tests.lockstep.audit.sums.rewritten import RANGES, journal, rewrite, write
from tests.lockstep.audit.sums.test_parts import ALGORITHM, RUN, SHAPE, Kept, a_round
from tests.lockstep.audit.test_follower import LAST, GrowingRecord
from tests.lockstep.audit.test_verify import error_line
from tests.support.summed import SummedRound
from tests.support.waiting import until


@pytest.fixture(scope="module")
def rewritten(
    finished: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[SummedRound]]:
    torch.set_num_threads(1)
    record = Path(shutil.copytree(finished, tmp_path_factory.mktemp("sums") / "record"))
    return record, rewrite(record)


@pytest.fixture
def record(rewritten: tuple[Path, list[SummedRound]], tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(rewritten[0], tmp_path / "record"))


def verified(record: Path, *arguments: str) -> int:
    found = record / "found.json"
    return main(["verify", str(record), "--threads", "1", "--json", str(found), *arguments])


def findings(record: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((record / "found.json").read_text())
    return document


def test_a_log_with_sums_is_replayed_from_them_and_the_report_says_so(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(record) == ExitCode.OK
    line = " ".join(capsys.readouterr().out.split())
    assert f"members reported the same state in {STEPS} rounds; " in line
    assert f"; {STEPS} rounds by the sums of members, which --sums adds again" in line
    found = findings(record)
    assert (found["replayed_by_sums"], found["sums_added"]) == (STEPS, None)


def test_ranges_are_added_again_where_parts_are_there(
    record: Path, rewritten: tuple[Path, list[SummedRound]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(record, "--sums") == ExitCode.OK
    line = " ".join(capsys.readouterr().out.split())
    assert f"{STEPS} rounds by the sums of members; {STEPS * RANGES} ranges added up to " in line
    assert findings(record)["sums_unadded"] == 0

    third, fifth = rewritten[1][3], rewritten[1][5]
    author = third.commit.entries[0].author
    kept = record / "node-0" / "payloads"
    (kept / "3" / sha256(third.parts[author][2]).hex()).unlink()
    (kept / "5" / fifth.lists[author].root.hex()).unlink()
    assert verified(record, "--sums") == ExitCode.OK
    assert "were not added, as nobody gave their parts" in capsys.readouterr().out.replace(
        "\n", " "
    )
    found = findings(record)
    lacking = 1 + RANGES
    assert (found["sums_added"], found["sums_unadded"]) == (STEPS * RANGES - lacking, lacking)


def test_authors_that_are_not_those_of_their_list_are_a_difference(
    record: Path, rewritten: tuple[Path, list[SummedRound]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator that tells nodes to weigh by others than those who trained."""
    commit, key = rewritten[1][-1].commit, load_or_create_key(record / "coordinator")
    assert commit.sums is not None
    authors = replace(commit.sums.authors, weight_sum=commit.sums.authors.weight_sum + 1)
    wrong = sign_commit(replace(commit, sums=replace(commit.sums, authors=authors)), key)
    for signed, words in (
        (replace(sign_commit(commit, key), author_list=b""), "does not have the list of its"),
        (replace(wrong, author_list=wrong.author_list[:-1]), "the list of authors that it names"),
        (wrong, "by their list, the commit says"),
    ):
        with journal(record) as database:
            write(database, commit.round, signed)
        assert verified(record) == ExitCode.REFUSED
        assert words in " ".join(error_line(capsys).split())
        assert findings(record)["first_difference"]["round"] == commit.round  # type: ignore[index]


def test_a_wrong_result_is_named_with_its_round_its_range_and_both_digests(
    record: Path, rewritten: tuple[Path, list[SummedRound]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two summers that lie together: nodes applied what they signed."""
    made = rewritten[1][-1]
    assert made.commit.sums is not None
    levels = decode_sums(made.results[2], ranges_of(made.shape.chunks, RANGES)[2].chunks)
    wrong = encode_sums(replace(levels, values=-levels.values))
    results = list(made.commit.sums.results)
    results[2] = replace(results[2], digest=sha256(wrong), payload_bytes=len(wrong))
    commit = replace(made.commit, sums=replace(made.commit.sums, results=tuple(results)))
    signed = sign_commit(commit, load_or_create_key(record / "coordinator"))
    liars = [Ed25519PrivateKey.from_private_bytes(bytes([each]) * 32) for each in (1, 2)]
    question = question_behind(commit, commit.sums, results[2])  # type: ignore[arg-type]
    words = [
        SumSigned(2, sha256(wrong), public_bytes(key), sign_sum(question, sha256(wrong), key))
        for key in liars
    ]
    framed = replace_struct(words[0], public_key=public_bytes(load_or_create_key(record / "x")))
    with journal(record) as database:
        write(database, commit.round, signed)
        database.execute("DELETE FROM digests WHERE round = ?", (commit.round,))
        said = msgspec.msgpack.encode((*words, framed))
        database.execute("INSERT INTO sums VALUES (?, ?)", (commit.round, said))
    (record / "node-0" / "payloads" / str(commit.round) / sha256(wrong).hex()).write_bytes(wrong)
    assert commit_digest(commit) != commit_digest(made.commit)
    assert verified(record) == ExitCode.OK
    assert verified(record, "--sums") == ExitCode.REFUSED
    honest = sha256(made.results[2]).hex()[:16]
    said = error_line(capsys)
    assert (
        f"the first difference is in round {commit.round}: the sum of range 2 is "
        f"{sha256(wrong).hex()[:16]} in the commit, the parts of its authors add up to {honest}"
    ) in said
    one, other = sorted(peer_id(public_bytes(key)) for key in liars)
    assert (
        f"; signed by {one} and {other}, whom the operator excludes by lockstep run ban {one}; "
        f"lockstep run ban {other}"
    ) in said
    assert framed.summer not in said, "a signature that is none names nobody"


async def test_an_auditor_adds_what_it_draws_and_unlike_sums_always() -> None:
    made = a_round()
    commit, sums = made.commit, made.commit.sums
    assert sums is not None
    one, liar = (Ed25519PrivateKey.from_private_bytes(bytes([each]) * 32) for each in (1, 2))
    wrong = sha256(b"wrong")

    def said(number: int, digest: Digest, key: Ed25519PrivateKey) -> wire.SumSigned:
        signature = sign_sum(question_behind(commit, sums, sums.results[number]), digest, key)
        key_bytes = public_bytes(key)
        return wire.SumSigned(
            range=number, digest=digest, public_key=key_bytes, signature=signature
        )

    kept = Kept(made.blobs)
    adder = RangeAdder(WholePayloads(kept.read, RUN, SHAPE), SHAPE, ALGORITHM)
    right = [said(each.number, each.digest, one) for each in sums.results]
    unlike = said(1, wrong, liar)
    forged = wire.SumSigned(
        range=2, digest=wrong, public_key=unlike.public_key, signature=unlike.signature
    )
    found = list[WrongSum]()
    for chance, count in ((1.0, 1), (0.0, RANGES)):
        audit = SumsAudit(adder, 0.5, found.append, chance=lambda chance=chance: chance)
        audit.look(commit, wire.Committed(signed_sums=[*right, unlike, forged]))
        while await audit.step():
            pass
        assert audit.document() == {"added": count, "unadded": 0, "wrong": 1, "waiting": 0}
        (evidence,) = found
        assert (evidence.signed.summer, evidence.signed.number) == (
            peer_id(public_bytes(liar)),
            1,
        )
        assert evidence.found == sums.results[1].digest
        found.clear()

    kept.blobs.clear()
    late = RangeAdder(WholePayloads(kept.read, RUN, SHAPE), SHAPE, ALGORITHM)
    audit = SumsAudit(late, 1.0, found.append)
    audit.look(replace(commit, round=8), wire.Committed(signed_sums=[*right, unlike]))
    assert not await audit.step(), "signed for another round"
    audit.look(commit, wire.Committed(signed_sums=[*right, unlike]))
    while await audit.step():
        pass
    assert audit.document() == {"added": 0, "unadded": RANGES, "wrong": 0, "waiting": 0}
    assert not found, "a missing part is no evidence"


async def searched(record: GrowingRecord, path: Path) -> tuple[dict[str, Any], list[Evidence]]:
    """What a follower says that has searched the whole record for copies, and what it has found."""
    found = list[Evidence]()
    copies = CopyWatch(record.info, secret=b"s", tell=found.append, path=path / "copies.json")
    follower = Follower(record, path, 100, authors=AuthorAudit(copies))
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.document()["rounds_equal"] == STEPS)
    document = follower.document()
    follower.leave()
    await task
    return document, found


async def test_the_search_for_copies_reads_whole_payloads_from_parts(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    growing = GrowingRecord(record)
    document, found = await searched(growing, tmp_path)
    entries = sum(len(growing.opened(row).entries) for row in (await growing.commits(-1)).commits)
    assert document["copies"]["payloads"] == entries > STEPS
    assert document["payloads_ignored"] == 0
    assert not found
    await growing.close()


class PartLost(GrowingRecord):
    """A record of which nobody gives a part of the range `lost` of one author, or gives other bytes
    in its place.
    """

    lost = 1
    error: type[Exception] = UnavailableError

    async def payload(self, round: int, entry: Named) -> bytes:
        if isinstance(entry, PayloadPart) and (round, entry.number) == (LAST, self.lost):
            raise self.error("nobody gives it")
        return await super().payload(round, entry)


@pytest.mark.parametrize("error", [UnavailableError, DivergedError])
async def test_a_part_that_nobody_gives_costs_the_audit_of_its_round_and_not_the_replay(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    growing = PartLost(record)
    growing.error = error
    document, found = await searched(growing, tmp_path)
    assert document["rounds_unread"] == 1
    rounds = (await growing.commits(-1)).commits[:-1]
    entries = sum(len(growing.opened(row).entries) for row in rounds)
    assert document["copies"]["payloads"] == entries, "of all other rounds"
    assert not found
    await growing.close()
