"""The ed25519 key of a process on disk.

A coordinator's key signs commits and, with the run file, names the run: without it the run cannot
continue. A node's key is its identity. The file is PKCS #8 in PEM, readable by its owner alone, and
not encrypted: a process that a supervisor restarts at night has nobody to ask for a passphrase.
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from node.system.files import replacing_file, storage_errors
from protocol.errors import StorageError

KEY_NAME = "key.pem"
"""Name of the key's file in the directory of the process."""


def load_or_create_key(directory: Path) -> Ed25519PrivateKey:
    """The key of the process that has `directory`; the first call makes it.

    Raises `StorageError` when the file holds anything else.
    """
    path = directory / KEY_NAME
    if not path.exists():
        _write_key(path, Ed25519PrivateKey.generate())
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
    with replacing_file(path) as temporary:
        temporary.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with storage_errors(path):
        path.chmod(0o600)
