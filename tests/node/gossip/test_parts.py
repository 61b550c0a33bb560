"""Promises of rounds with a plan, in virtual time over real links: parts reach those that add them,
and who adds the same says the same.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.links.network import Purpose
from protocol.codec.announcement import announce, offered_payload
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import Commit
from protocol.codec.payload import Header, encode
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, sha256
from protocol.sums.asked import Question, SumAuthor, summer_of
from protocol.sums.part_list import LIST_BYTES_MAX, PartList, PartName, list_of
from protocol.sums.parts import shape_of
from protocol.sums.ranges import ranges_of
from protocol.wire_pb2 import OfferedPayload, Offers
from tests.node.gossip.crowd import (
    RANGES,
    RATE_BITS,
    ROUND,
    SAMPLES,
    SHAPE,
    Crowd,
    Node,
    crowd,
    parts_of,
    plan_of,
    question,
    root_of,
    sum_of,
)
from tests.node.links.net import RUN, key_of, peer_of
from tests.support.summed import sums_of
from tests.support.virtual_time import in_virtual_time, without_threads
from tests.support.votes import signs
from tests.support.waiting import until

PLAN = plan_of((3, 4), (3, 4), (0, 4), (3, 1))
"""Authors are 0, 1 and 2; summers are 3 and 4, and two authors beside them."""

ADDED = {3: 0b1011, 4: 0b0111, 0: 0b0100, 1: 0b1000}
AUTHORS = {author: root_of(author) for author in range(3)}


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


async def publish(nodes: Crowd, *authors: int) -> None:
    for author in authors:
        node = nodes.nodes[author]
        root = await node.swarm.parts.publish(ROUND, parts_of(author), SAMPLES + author)
        assert root == root_of(author)


def offer_of(
    author: int, parts: list[bytes], ranges: int, round: int = ROUND, key: int | None = None
) -> OfferedPayload:
    """The offer of parts as their author signs it; `key` is the number of the key that does."""
    listed = list_of(parts)
    signer, size = key_of(author if key is None else key), sum(map(len, parts))
    said = announce(signer, RUN, round, listed.root, size=size, samples=SAMPLES + author)
    offer = offered_payload(replace(said, author_key=public_bytes(key_of(author))))
    offer.part_list, offer.ranges = listed.blob, ranges
    return offer


def told(node: Node, sender: int, *offers: OfferedPayload) -> None:
    node.swarm.on_offer(Offers(run_id=RUN, sender=peer_of(sender), offers=offers))


# ---- together


@in_virtual_time
async def test_all_summers_of_a_range_hold_all_parts_and_find_one_sum(tmp_path: Path) -> None:
    async with crowd(tmp_path, 5, PLAN) as nodes:
        await publish(nodes, 0, 1, 2)
        await until(lambda: all(nodes.nodes[n].holds(0, 1, 2, ranges=ADDED[n]) for n in ADDED))
        assert nodes.nodes[2].held == {}, "an author that adds nothing reports nothing"
        for number, ranges in ADDED.items():
            mine = [place for place in range(RANGES) if ranges >> place & 1]
            nodes.nodes[number].summer.asked(question(dict.fromkeys(mine, ()), AUTHORS))
        await until(lambda: all(len(nodes.nodes[n].summed) == ADDED[n].bit_count() for n in ADDED))
        authors = tuple(
            SumAuthor(peer_of(each), AUTHORS[each], SAMPLES + each)
            for each in sorted(AUTHORS, key=peer_of)
        )
        for place, summers in enumerate(PLAN.summers):
            expected = sum_of(place, {author: parts_of(author)[place] for author in AUTHORS})
            assert len(expected.blob) > 20
            for node in nodes.nodes.values():
                if peer_of(node.number) not in summers:
                    assert place not in node.summed
                    continue
                said = node.summed[place]
                assert (said.digest, said.result_bytes) == (expected.digest, len(expected.blob))
                asked = Question(RUN, ROUND, RATE_BITS, authors, RANGES, place)
                signed = asked, Digest(said.digest), said.public_key, said.signature
                assert summer_of(*signed) == peer_of(node.number)
                assert node.log.get(expected.digest) == expected.blob


@in_virtual_time
async def test_results_reach_everybody_and_lists_and_parts_stay(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path, 5, PLAN) as nodes:
        await publish(nodes, 0, 1, 2)
        await until(lambda: all(nodes.nodes[n].holds(0, 1, 2, ranges=ADDED[n]) for n in ADDED))
        two = {author: AUTHORS[author] for author in (0, 1)}  # the third is left out
        results = [
            sum_of(place, {author: parts_of(author)[place] for author in two})
            for place in range(RANGES)
        ]
        for number in (3, 4, 0, 1):
            places = [place for place in range(RANGES) if ADDED[number] >> place & 1]
            nodes.nodes[number].summer.asked(question(dict.fromkeys(places, ()), two))
        await until(lambda: all(len(nodes.nodes[n].summed) == ADDED[n].bit_count() for n in ADDED))
        assert nodes.nodes[3].swarm.purpose(results[0].digest) is Purpose.PAYLOAD
        assert nodes.nodes[0].swarm.purpose(root_of(0)) is Purpose.PAYLOAD
        named = tuple(
            RangeSum(place, result.digest, len(result.blob)) for place, result in enumerate(results)
        )
        sums = sums_of(RANGES, named, ())  # a node is not told the authors
        commit = Commit(RUN, ROUND, 0, (), RATE_BITS, 0, Digest(bytes(32)), sums=sums)
        # only the first summer of each range is known: the others are found by their offers
        holders = [[peer_of((3, 3, 4, 1)[place])] for place in range(RANGES)]
        collected = await asyncio.gather(
            *(node.swarm.collect(commit, holders) for node in nodes.nodes.values())
        )
        assert collected == [[result.blob for result in results]] * 5
        for node in nodes.nodes.values():
            node.swarm.settle(ROUND, None)
        await nodes.stop()
        for number, node in nodes.nodes.items():
            assert all(node.log.size(result.digest) for result in results)
            kept = set(node.log.digests(ROUND)) - {result.digest for result in results}
            named = {
                author: {sha256(part) for part in parts_of(author)} | {root_of(author)}
                for author in range(3)
            }
            if number in AUTHORS:
                assert named[number] <= kept, "an author keeps all of its own"
            if number in (3, 4):
                assert {root_of(0), root_of(1), root_of(2)} <= kept, "a summer keeps the lists"
                assert len(kept) == 3 + 3 * ADDED[number].bit_count()


@in_virtual_time
async def test_a_commit_that_waits_for_a_result_has_it_once_this_node_made_it(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path, 5, PLAN) as nodes:
        swarm, result = nodes.nodes[3].swarm, b"the sum of a range"
        sums = sums_of(RANGES, (RangeSum(0, sha256(result), len(result)),), ())
        commit = Commit(RUN, ROUND, 0, (), RATE_BITS, 0, Digest(bytes(32)), sums=sums)
        collecting = asyncio.create_task(swarm.collect(commit, [[peer_of(4)]]))
        await until(lambda: swarm.waiting_for)
        await swarm.parts.keep_result(ROUND, result)
        async with asyncio.timeout(1):
            assert await collecting == [result]


@in_virtual_time
async def test_parts_go_over_a_relay_where_an_author_has_no_link_to_a_summer(
    tmp_path: Path,
) -> None:
    plan = plan_of((1, 2), (1, 2), (1, 2), (1, 2))
    relay = 9
    together = Crowd(tmp_path)
    for summer in ("1", "2"):
        together.network.cut("0", summer)
    try:
        for number in range(3):
            await together.add(number)
        await together.add(relay, relay=True)
        together.introduce(plan, [relay])
        await publish(together, 0)
        await until(lambda: all(together.nodes[n].holds(0, ranges=0b1111) for n in (1, 2)))
        assert together.nodes[relay].held == {}, "a relay adds nothing, so it reports nothing"
        assert len(together.nodes[relay].log.digests(ROUND)) == RANGES + 1
    finally:
        await together.stop()


@in_virtual_time
async def test_a_summer_that_is_added_later_gets_the_parts_and_finds_the_same_sum(
    tmp_path: Path,
) -> None:
    plan = plan_of((2, 3), (2, 3), (2, 3), (2, 3))
    async with crowd(tmp_path, 5, plan) as nodes:
        await publish(nodes, 0, 1)
        await until(lambda: nodes.nodes[2].holds(0, 1, ranges=0b1111))
        assert nodes.nodes[4].held == {}
        for node in nodes.nodes.values():
            node.swarm.parts.add_summer(ROUND, 2, peer_of(4))
        await until(lambda: nodes.nodes[4].holds(0, 1, ranges=0b0100))
        two = {author: AUTHORS[author] for author in (0, 1)}
        for number in (2, 4):
            nodes.nodes[number].summer.asked(question({2: ()}, two))
        await until(lambda: nodes.nodes[2].summed and nodes.nodes[4].summed)
        expected = sum_of(2, {author: parts_of(author)[2] for author in (0, 1)})
        for number in (2, 4):
            assert nodes.nodes[number].summed[2].digest == expected.digest


@in_virtual_time
async def test_an_author_that_is_added_reports_its_own_parts(tmp_path: Path) -> None:
    async with crowd(tmp_path, 3, plan_of((1, 2), (1, 2), (1, 2), (1, 2))) as nodes:
        await publish(nodes, 0)
        assert nodes.nodes[0].held == {}
        nodes.nodes[0].swarm.parts.add_summer(ROUND, 1, peer_of(0))
        assert nodes.nodes[0].holds(0, ranges=0b0010)
        nodes.nodes[0].held.clear()
        nodes.nodes[0].swarm.parts.repeat()
        assert nodes.nodes[0].holds(0, ranges=0b0010), "it says so again in a new session"


@in_virtual_time
async def test_a_summer_that_nobody_offered_to_asks_for_the_list_and_the_part(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path, 4, plan_of((1, 2), (1, 2), (1, 2), (1, 2))) as nodes:
        await publish(nodes, 0)
        await until(lambda: nodes.nodes[1].holds(0, ranges=0b1111))
        late = nodes.nodes[3]  # only it hears that it is to add
        late.swarm.parts.add_summer(ROUND, 3, peer_of(3))
        late.summer.asked(question({3: ()}, {0: AUTHORS[0]}))
        await until(lambda: late.summed)
        assert late.summed[3].digest == sum_of(3, {0: parts_of(0)[3]}).digest


# ---- authors that do not behave


def bad_parts(author: int) -> list[bytes]:
    """The parts of an author whose second one is that of a range of another length."""
    parts = parts_of(author)
    header = Header(RUN, ROUND, peer_of(author))
    short = shape_of(SHAPE, ranges_of(SHAPE.chunks, RANGES)[0])
    assert short.chunks != ranges_of(SHAPE.chunks, RANGES)[1].chunks
    parts[1] = encode(header, signs(short.chunks, SHAPE.top_k, author), short)
    return parts


@in_virtual_time
async def test_a_bad_part_is_held_by_nobody_and_says_nothing_where_it_is_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with crowd(tmp_path, 4, plan_of((2, 3), (2, 3), (2, 3), (2, 3))) as nodes:
        await publish(nodes, 0)
        bad = bad_parts(1)
        root = await nodes.nodes[1].swarm.parts.publish(ROUND, bad, SAMPLES + 1)
        summers = [nodes.nodes[2], nodes.nodes[3]]
        await until(lambda: all(node.held.get(root) == 0b1101 for node in summers))
        await until(lambda: all(node.holds(0, ranges=0b1111) for node in summers))
        authors = {0: AUTHORS[0], 1: root}
        good = parts_of(0)
        with caplog.at_level(logging.WARNING):
            summers[0].summer.asked(question({1: ()}, authors))  # as if two had said they hold it
            summers[1].summer.asked(question({1: ()}, authors))
            await until(lambda: all(node.summed for node in summers))
        expected = sum_of(1, {0: good[1], 1: bad[1]})
        assert list(expected.refused) == [peer_of(1)]
        assert {node.summed[1].digest for node in summers} == {expected.digest}
        assert expected.blob == sum_of(1, {0: good[1]}, silent=[1]).blob
        assert "an author's part says nothing" in caplog.messages
        assert {node.held.get(root) for node in summers} == {0b1101}
        for node in summers:
            node.sent.clear()
            node.summer.asked(question({1: [1], 0: []}, authors))
        await until(lambda: all(len(node.summed) == 2 for node in summers))
        assert {node.summed[1].digest for node in summers} == {expected.digest}
        whole = sum_of(0, {0: good[0], 1: bad[0]})
        assert {node.summed[0].digest for node in summers} == {whole.digest}


@in_virtual_time
async def test_who_lists_the_part_of_another_has_none_and_keeps_nobody_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with crowd(tmp_path, 4, plan_of((2, 3), (2, 3), (2, 3), (2, 3))) as nodes:
        thief, summer = nodes.nodes[1], nodes.nodes[2]
        stolen = [parts_of(0)[0], *parts_of(1)[1:]]
        for part in stolen:
            thief.log.put(ROUND, part)
        await until(lambda: peer_of(1) in summer.swarm._exchange._sources.linked)
        with caplog.at_level(logging.WARNING):
            told(summer, 1, offer_of(1, stolen, 0b1111))
            theirs = list_of(stolen).root
            await until(lambda: summer.held.get(theirs) == 0b1110)
            await until(lambda: "a peer is at fault" in caplog.messages)
        await publish(nodes, 0)
        await until(lambda: summer.holds(0, ranges=0b1111))
        await until(lambda: nodes.nodes[3].holds(0, ranges=0b1111))
        assert summer.held[theirs] == 0b1110


@in_virtual_time
async def test_a_root_that_names_no_list_says_nothing(tmp_path: Path) -> None:
    async with crowd(tmp_path, 3, plan_of((1, 2), (1, 2), (1, 2), (1, 2))) as nodes:
        await publish(nodes, 0)
        await until(lambda: nodes.nodes[1].holds(0, ranges=0b1111))
        nodes.nodes[2].log.put(ROUND, b"no list")
        nodes.nodes[1].summer.asked(question({0: ()}, {0: AUTHORS[0], 2: sha256(b"no list")}))
        await until(lambda: nodes.nodes[1].summed)
        expected = sum_of(0, {0: parts_of(0)[0], 2: b""})
        assert nodes.nodes[1].summed[0].digest == expected.digest


@in_virtual_time
async def test_a_wrong_length_in_anothers_list_keeps_no_part_out(tmp_path: Path) -> None:
    async with crowd(tmp_path, 3, plan_of((2,), (2,), (2,), (2,))) as nodes:
        summer, parts = nodes.nodes[2], parts_of(0)
        nodes.nodes[1].log.put(ROUND, parts[0])
        listed = list_of([*parts_of(1)[:3], parts[0]])
        name = listed.names[3]
        lie = PartList((*listed.names[:3], PartName(name.digest, name.bytes + 1)))
        size = sum(each.bytes for each in lie.names)
        offer = offered_payload(announce(key_of(1), RUN, ROUND, lie.root, size=size, samples=1))
        offer.part_list, offer.ranges = lie.blob, 0b1000
        told(summer, 1, offer)
        await publish(nodes, 0)
        await until(lambda: summer.holds(0, ranges=0b1111))
        assert lie.root not in summer.held


# ---- offers


@in_virtual_time
async def test_an_offer_that_does_not_fit_the_round_is_refused(tmp_path: Path) -> None:
    async with crowd(tmp_path, 3, plan_of((1,), (1,), (2,), (2,))) as nodes:
        node, parts = nodes.nodes[1], parts_of(0)
        good = offer_of(0, parts, 0b0011)
        whole = offered_payload(
            announce(key_of(0), RUN, ROUND, sha256(b"whole"), size=5, samples=1)
        )
        other_list = offer_of(0, parts, 0b0011)
        other_list.part_list = list_of(parts_of(2)).blob
        other_size = offer_of(0, parts, 0b0011)
        other_size.payload_bytes += 1
        long = offer_of(0, parts, 0b0011)
        long.part_list = b"LSPL" + bytes(LIST_BYTES_MAX)
        early = offer_of(0, parts, 0b0011, round=ROUND + 1)
        for offer, why in (
            (whole, "expected parts of the ranges 0x3"),
            (offer_of(0, parts[:3], 0b0011), "list of 4 parts"),
            (offer_of(0, parts, 0), "parts of 4 ranges, got 0x0"),
            (offer_of(0, parts, 0b10001), "parts of 4 ranges"),
            (offer_of(0, parts, 0b0110), "parts of the ranges 0x3"),
            (offer_of(0, parts, 0b0011, key=2), "expected"),
            (other_list, "expected the list of parts"),
            (other_size, "expected"),
            (long, "expected"),
            (early, "or none yet"),
            (replace_round(good, -1), "round of at least 0"),
        ):
            with pytest.raises(RemoteProtocolError, match=why):
                told(node, 0, offer)
        told(node, 0, good)
        assert node.swarm._exchange.knows(sha256(parts[0]))
        assert not node.swarm._exchange.knows(sha256(parts[3]))
        node.swarm.settle(ROUND, [])
        told(node, 0, good)  # late
        assert not node.swarm._exchange.knows(sha256(parts[0]))


def replace_round(offer: OfferedPayload, round: int) -> OfferedPayload:
    changed = OfferedPayload()
    changed.CopyFrom(offer)
    changed.round = round
    return changed


@in_virtual_time
async def test_a_list_is_refused_in_a_round_without_a_plan(tmp_path: Path) -> None:
    async with crowd(tmp_path, 2, None) as nodes:
        with pytest.raises(RemoteProtocolError, match="expected no parts in round 5"):
            told(nodes.nodes[1], 0, offer_of(0, parts_of(0), 0b0001))
        with pytest.raises(LocalProtocolError, match="round"):
            await nodes.nodes[0].swarm.parts.collect(ROUND, 0, {})


@in_virtual_time
async def test_parts_from_before_a_restart_are_judged_and_held_without_a_pull(
    tmp_path: Path,
) -> None:
    async with crowd(tmp_path, 2, plan_of((1,), (1,), (1,), (1,))) as nodes:
        for part in bad_parts(0):
            nodes.nodes[1].log.put(ROUND, part)
        told(nodes.nodes[1], 0, offer_of(0, bad_parts(0), 0b1111))
        root = list_of(bad_parts(0)).root
        await until(lambda: nodes.nodes[1].held.get(root) == 0b1101)
        assert nodes.nodes[1].swarm.statistics.payload_down_bytes == 0


@in_virtual_time
async def test_a_node_publishes_a_part_for_each_range(tmp_path: Path) -> None:
    async with crowd(tmp_path, 2, plan_of((1,), (1,), (1,), (1,))) as nodes:
        with pytest.raises(LocalProtocolError, match="expected 4 parts, got 3"):
            await nodes.nodes[0].swarm.parts.publish(ROUND, parts_of(0)[:3])


_AUTHOR = st.integers(0, 3)
_bytes = st.binary(max_size=40) | st.just(bytes(32)) | st.just(list_of(parts_of(0)).blob)


@st.composite
def _offers(draw: st.DrawFn) -> OfferedPayload:
    """An offer that is right but for some fields."""
    author = draw(_AUTHOR)
    offer = offer_of(author, parts_of(draw(_AUTHOR)), draw(st.integers(0, 2**64 - 1)))
    if draw(st.booleans()):
        offer.ranges = draw(st.integers(0, 2**RANGES - 1))
    for name in draw(st.sets(st.sampled_from(["part_list", "digest", "author_key", "signature"]))):
        setattr(offer, name, draw(_bytes))
    if draw(st.booleans()):
        offer.round = draw(st.integers(-1, ROUND + 4) | st.just(2**63 - 1))
    if draw(st.booleans()):
        offer.payload_bytes = draw(st.integers(0, 2**64 - 1))
    return offer


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), _offers()), max_size=12))
def test_any_offer_is_taken_or_refused_and_takes_bounded_memory(
    tmp_path: Path, said: list[tuple[int, OfferedPayload]]
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with crowd(tmp_path, 3, plan_of((1, 2), (1, 2), (1,), (2,))) as nodes:
            node = nodes.nodes[1]
            for sender, offer in said:
                with contextlib.suppress(RemoteProtocolError):
                    told(node, sender, offer)
                node.swarm._exchange.validate()
            rounds = node.swarm.parts.book.rounds()
            assert set(rounds) <= {ROUND}
            known = node.swarm.parts.book._rounds.get(ROUND)
            assert known is None or len(known.roots) <= 3
            assert known is None or len(known.claims) <= 3 * RANGES

    run()
