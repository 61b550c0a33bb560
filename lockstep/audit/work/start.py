"""Begins the audit of a run's work, if the run and this machine allow one."""

import secrets
from collections.abc import Callable
from pathlib import Path

from lockstep.audit.work.auditing import BOOK_NAME, WorkAudit
from lockstep.audit.work.recompute import Recomputer, unaudited
from node.data.corpus import Corpus
from node.own_data import open_corpus
from node.settings import NodeSettings
from protocol.codec.evidence import Evidence
from protocol.errors import DataError
from protocol.run_info import RunInfo

SECRET_BYTES = 32
"""Length of the secret that draws; it is new at each start, and nobody is told."""


def begin(
    info: RunInfo,
    node: NodeSettings,
    share: float,
    tell: Callable[[Evidence], None],
) -> tuple[WorkAudit | None, str]:
    """The audit of a run's work, which may take this share of the run's compute; or None, and why
    there is none. `node` says where the run's data are.
    """
    if share <= 0:
        return None, "work is not audited: --work-share is 0"
    if reason := unaudited(info.spec):
        return None, f"work is not audited: {reason}"
    try:
        corpus = open_corpus(node, info)
    except DataError as error:
        return None, f"work is not audited: {error}; name the run's data with --data"
    path = node.directory / BOOK_NAME
    recomputer = Recomputer(info.spec, corpus)
    secret = secrets.token_bytes(SECRET_BYTES)
    return WorkAudit(info, recomputer, share, secret=secret, tell=tell, path=path), ""


def recomputer_for(info: RunInfo, data: Path) -> Recomputer:
    """A model and the run's data in a directory; `DataError` for other data, or a run whose work
    nobody can compute again.
    """
    if reason := unaudited(info.spec):
        raise DataError(reason)
    corpus: Corpus = open_corpus(NodeSettings("localhost:1", data.parent, data), info)
    return Recomputer(info.spec, corpus)
