"""Begins the audit of a run's authors, as far as the run and this machine allow one."""

import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.copies.watching import BOOK_NAME as COPIES_NAME
from lockstep.audit.copies.watching import CopyWatch, uncompared
from lockstep.audit.work.auditing import BOOK_NAME, WorkWatch
from lockstep.audit.work.authors import AuthorAudit
from lockstep.audit.work.recompute import Recomputer, unaudited
from node.data.corpus import Corpus
from node.own_data import open_corpus
from node.settings import NodeSettings
from protocol.audit.lots import Draw, draw
from protocol.codec.evidence import WHOLE, Evidence
from protocol.errors import DataError
from protocol.run_info import RunInfo

SECRET_BYTES = 32
"""Length of the secret that draws chunks; it is new at each start, and nobody is told."""


def begin(
    info: RunInfo,
    node: NodeSettings,
    share: float,
    tell: Callable[[Evidence], None],
    key: Ed25519PrivateKey,
) -> tuple[AuthorAudit, str]:
    """The audit of a run's authors, whose work is computed again with this share of the run's
    compute; and why there is nothing of that. `node` says where the run's data are, the auditor's
    `key` draws rounds.
    """
    copies = None
    if not uncompared(info.spec):
        secret, path = secrets.token_bytes(SECRET_BYTES), node.directory / COPIES_NAME
        copies = CopyWatch(info, secret=secret, tell=tell, path=path)
    work, reason = _work(info, node, share, tell, key)
    return AuthorAudit(copies, work), reason


def _work(
    info: RunInfo,
    node: NodeSettings,
    share: float,
    tell: Callable[[Evidence], None],
    key: Ed25519PrivateKey,
) -> tuple[WorkWatch | None, str]:
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
    drawn_for = min(WHOLE, max(1, round(WHOLE * share)))

    def draws(round_: int) -> Draw:
        return draw(key, info.run_id, round_, drawn_for)

    return WorkWatch(info, recomputer, share, draws=draws, tell=tell, path=path), ""


def recomputer_for(info: RunInfo, data: Path) -> Recomputer:
    """A model and the run's data in a directory; `DataError` for other data, or a run whose work
    nobody can compute again.
    """
    if reason := unaudited(info.spec):
        raise DataError(reason)
    corpus: Corpus = open_corpus(NodeSettings("localhost:1", data.parent, data=data), info)
    return Recomputer(info.spec, corpus)
