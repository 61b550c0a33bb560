"""Compares what a commit with sums says of its authors with the list of them."""

from protocol.codec.commits import Commit
from protocol.runfile import RunSpec
from protocol.sums.results import authors_behind


def flaw_of_authors(commit: Commit, spec: RunSpec) -> str:
    """Why the authors of a commit are not those by which nodes make its step; empty where they are,
    and in a round without sums.
    """
    if commit.sums is None:
        return ""
    if not commit.entries:
        return "the record does not have the list of its authors"
    listed = authors_behind(commit.entries, commit.learning_rate_bits, spec.algorithm)
    if listed == commit.sums.authors:
        return ""
    return f"its authors are {listed} by their list, the commit says {commit.sums.authors}"
