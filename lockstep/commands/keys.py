"""`lockstep keys backup | restore`: the identity of this computer, kept elsewhere and put back.

Whoever has the key can be this node, and without it nobody can: the name, the credit and the
standing in every run go with it.
"""

from pathlib import Path

from lockstep.console import output
from lockstep.exit_codes import UsageError
from lockstep.service.home import Home
from lockstep.service.keys import KEY_NAME, read_key
from node.system.files import MODE_FOR_OWNER, replacing_file
from protocol.errors import StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, peer_id


def backup(home: Path, file: Path) -> None:
    """Copies the key to a new file that its owner alone can read."""
    key = home.expanduser() / KEY_NAME
    if not key.is_file():
        raise StorageError(f"expected an identity in {key}, found none; `lockstep join` makes one")
    own = _identity(key)
    if file.exists():
        raise UsageError(f"{file} exists already; name a new file")
    _write_private(file, key.read_bytes())
    output.print(f"the identity {own} is in {file}; keep it where nobody else can read it")


def restore(home: Path, file: Path, *, force: bool) -> None:
    """Puts a key in the place of this computer's."""
    if not file.is_file():
        raise StorageError(f"expected a key in {file}, found no such file")
    place = home.expanduser()
    key, own = place / KEY_NAME, _identity(file)
    if Home(place).at_work():
        raise UsageError(f"a node is at work in {place}: end it first (`lockstep finish`)")
    if key.exists():
        present = _identity(key)
        if present == own:
            output.print(f"the identity {own} is there already")
            return
        if not force:
            raise UsageError(
                f"{key} holds another identity, {present}: back it up, then say --force"
            )
    _write_private(key, file.read_bytes())
    output.print(f"this computer is {own} now; do not use the key on two computers at once")


def _identity(file: Path) -> PeerId:
    """The id of the key in a file; `StorageError` when it is none."""
    return peer_id(public_bytes(read_key(file)))


def _write_private(file: Path, blob: bytes) -> None:
    """Writes a file for its owner alone, whole or not at all: half a backup is worse than none."""
    with replacing_file(file, mode=MODE_FOR_OWNER) as temporary:
        temporary.write_bytes(blob)
