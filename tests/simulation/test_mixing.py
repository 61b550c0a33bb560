"""Runs whose nodes mix parameters keep their promises under faults, and a broken rule is caught."""

from pathlib import Path

import pytest

from coordinator.machine.rules import edges
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.mixing.topologies import Edge
from tests.coordinator.machine.driver import PEERS
from tests.simulation.checkers import Violation
from tests.simulation.mixing import MixingRun, Node


@pytest.mark.parametrize(
    ("seed", "topology"), [(1, "one-peer-exponential"), (2, "complete"), (3, "random-matching")]
)
def test_the_mean_is_kept_and_the_members_come_together(
    tmp_path: Path, seed: int, topology: str
) -> None:
    run = MixingRun(seed, tmp_path, topology)
    run.check()
    assert run.committed_edges > 20
    assert run.kills > 2


def test_groups_of_measured_links_keep_the_mean_and_most_edges_are_within_them(
    tmp_path: Path,
) -> None:
    first, second, third, *others = PEERS
    houses = (first, third), (second, *others)  # unlike the pairs of ids
    run = MixingRun(4, tmp_path, "hierarchical", houses)
    run.check()
    assert run.kills > 2
    assert run.near_edges > run.committed_edges / 2 > 5


def test_with_one_direction_between_two_members_lost_the_mean_stays_and_they_come_together(
    tmp_path: Path,
) -> None:
    first, second, *_ = PEERS
    run = MixingRun(7, tmp_path, "one-peer-exponential", deaf=(first, second))
    run.check()
    commits = [commit for _, commit in run.decisions if commit and commit.mix]
    both = [commit for commit in commits if {first, second} <= authors_of(commit)]
    assert len(both) > 5
    assert all(second not in commit.shares_of(first) for commit in both)
    assert all(first not in commit.shares_of(second) for commit in both), "for neither end"


def authors_of(commit: Commit) -> set[PeerId]:
    return {entry.author for entry in commit.entries}


def test_differences_of_one_byte_keep_the_mean_and_bring_the_members_together(
    tmp_path: Path,
) -> None:
    run = MixingRun(6, tmp_path, "one-peer-exponential", exchange="int8")
    run.check()
    assert run.kills > 2


def test_rounds_that_only_mix_keep_the_mean_and_come_until_the_members_are_together(
    tmp_path: Path,
) -> None:
    run = MixingRun(5, tmp_path, "one-peer-exponential", critical=2.0)
    run.check()
    assert run.only_mixed > 2


@pytest.mark.parametrize("seed", [1, 2])
def test_all_members_have_one_base_whatever_happens_to_them(tmp_path: Path, seed: int) -> None:
    run = MixingRun(seed, tmp_path, "one-peer-exponential", exchange="int8", mean_every=3)
    run.make_faults()
    means = [commit for _, commit in run.decisions if commit and commit.mix and commit.mix.mean]
    assert len(means) > 1
    assert run.kills > 2
    bases = {node.replica.extract(99).values.base for node in run.nodes}
    assert len(bases) == 1
    assert all(node.replica.payloads_ignored == 0 for node in run.nodes)


def test_an_edge_that_only_one_end_holds_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held_by_one(undecided: UndecidedRound, edge: Edge) -> bool:
        said = [undecided.announced.get(end) for end in edge]
        return all(said) and any(
            each and edge[1 - place] in undecided.receipts.holding(Digest(each.digest))
            for place, each in enumerate(said)
        )

    monkeypatch.setattr(edges, "holds", held_by_one)
    with pytest.raises(Violation, match="lacks a payload"):
        MixingRun(1, tmp_path, "one-peer-exponential").check()


def test_an_edge_that_one_end_forgets_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that comes back passes over the commits that it has not taken."""

    def skips(node: Node) -> None:
        start_again(node)
        node.next_round += 2

    start_again = Node.start_again
    monkeypatch.setattr(Node, "start_again", skips)
    with pytest.raises(Violation, match="half mixed"):
        MixingRun(1, tmp_path, "one-peer-exponential").check()
