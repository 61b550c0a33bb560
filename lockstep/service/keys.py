"""The ed25519 key of a process on disk.

A coordinator's key signs commits and, with the run file, names the run: without it the run cannot
continue. A node's key is its identity. The file is PKCS #8 in PEM, readable by its owner alone, and
not encrypted: a process that a supervisor restarts at night has nobody to ask for a passphrase.
"""

import logging
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from node.system.files import MODE_FOR_OWNER, replacing_file, storage_errors
from protocol.errors import StorageError

KEY_NAME = "key.pem"
"""Name of the key's file in the directory of the process."""

log = logging.getLogger(__name__)


def load_or_create_key(directory: Path) -> Ed25519PrivateKey:
    """The key of the process that has `directory`; the first call makes it. A file that other
    accounts can read is closed to them, with a warning.

    Raises `StorageError` when the file holds anything else.
    """
    path = directory / KEY_NAME
    if not path.exists():
        _write_key(path, Ed25519PrivateKey.generate())
    _close_to_others(path)
    return read_key(path)


def read_key(path: Path) -> Ed25519PrivateKey:
    """The key in a file; `StorageError` when the file holds anything else."""
    with storage_errors(path):
        text = path.read_bytes()
    try:
        key = load_pem_private_key(text, password=None)
    except ValueError as error:
        raise StorageError(
            f"{path}: expected an ed25519 key in PEM, got something else: {error}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise StorageError(f"{path}: expected an ed25519 key, got {type(key).__name__}")
    return key


def _write_key(path: Path, key: Ed25519PrivateKey) -> None:
    with replacing_file(path, mode=MODE_FOR_OWNER) as temporary:
        temporary.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _close_to_others(path: Path) -> None:
    """Take the key's file from other accounts. `StorageError` where that is not possible."""
    if os.name == "nt":
        return  # its access lists are not these bits
    with storage_errors(path, doing="take from other accounts"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(MODE_FOR_OWNER)
            log.warning(
                "the key was readable by other accounts and is no longer; if one of them is not "
                "yours, stop, remove the file and start with another key",
                extra={"path": str(path), "mode": f"{mode:04o}"},
            )
