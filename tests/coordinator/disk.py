"""Disks that fail, for tests: limits on the connection that a journal writes with."""

import sqlite3

from coordinator.journal import Journal


def leave_pages(journal: Journal, count: int) -> None:
    """Let the file of the journal grow by at most `count` pages."""
    database = _connection(journal)
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages + count}")


def refuse_writes(journal: Journal) -> None:
    """Let every write to the journal fail."""
    _connection(journal).execute("PRAGMA query_only = ON")


def _connection(journal: Journal) -> sqlite3.Connection:
    return journal._database
