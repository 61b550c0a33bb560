"""The volunteer's directory: one identity, and a directory for each run.

    ~/.lockstep/key.pem            the identity of this computer, in every run
    ~/.lockstep/settings.json      the name of this computer in tables
    ~/.lockstep/runs/RUN_ID/       state, payloads, snapshots and checkpoint of one run
    ~/.lockstep/corpora/           built-in training data, shared by all runs
    ~/.lockstep/relay/             the same for a relay: key.pem, runs/RUN_ID/

A run never touches the directory of another one. With an explicit directory everything lies there,
the identity too: several nodes on one computer are then several nodes.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.service.contact import first_word
from lockstep.service.directory import Owner, claimed, pid_at_work
from lockstep.service.keys import KEY_NAME, load_or_create_key
from lockstep.service.serve import ServeOptions
from node.control import first_contact
from node.system.files import replacing_file, storage_errors
from protocol.border.join_link import parse_link
from protocol.codec.decoding import UNREADABLE
from protocol.errors import StorageError
from protocol.ids import RunId

RUNS_NAME = "runs"
"""Name of the directory that holds one directory for each run."""

SETTINGS_NAME = "settings.json"
"""Name of the file with the settings that are remembered."""

Entered = tuple[Path, Ed25519PrivateKey, ServeOptions]
"""The directory of a run, the identity, and how the process is served there."""

STATE_NAME = "state.safetensors"
"""Name of the file with a node's state, in the directory of its run."""


@contextlib.contextmanager
def entered(url: str, role: str, home: "Home", options: ServeOptions) -> Iterator[Entered]:
    """Asks which run a link names, and claims this identity's directory for it to the end of the
    block. Raises as `first_word` and `claimed`.
    """
    link = parse_link(url)
    known = home.knows(link.address)
    info = first_word(link, known=known, follow_parent=options.follow_parent)
    place = home.run(info.run_id)
    with claimed(place, Owner(role, info.run_id, info.spec.name)):
        first_contact.remember(place, link.address)
        yield place, load_or_create_key(home.path), replace(options, directory=place)


class Remembered(msgspec.Struct, omit_defaults=True):
    """Settings that hold from one start to the next."""

    name: str | None = None
    """Name of this computer in tables, empty for none; None while nobody was asked."""


@dataclass(frozen=True, slots=True)
class Home:
    """The place of one identity and its runs; with `only`, an explicit directory for one run."""

    path: Path
    only: bool = False

    @property
    def runs(self) -> list[Path]:
        """The directories of all runs that this identity has joined."""
        if self.only:
            return [self.path]
        with storage_errors(self.path):
            return sorted(path for path in (self.path / RUNS_NAME).glob("*") if path.is_dir())

    @property
    def lost_key(self) -> bool:
        """Whether nodes have worked here with a key that is gone."""
        if (self.path / KEY_NAME).exists():
            return False
        return any((run / STATE_NAME).exists() for run in self.runs)

    def run(self, run_id: RunId) -> Path:
        """The directory of one run."""
        return self.path if self.only else self.path / RUNS_NAME / run_id

    def knows(self, address: str) -> bool:
        """Whether a coordinator has answered at this address before, as far as can be read."""
        for directory in self.runs:
            with contextlib.suppress(StorageError):  # whoever works there says it better
                if first_contact.is_known(directory, address):
                    return True
        return False

    def at_work(self) -> list[Path]:
        """The directories in which a process works now."""
        return [directory for directory in self.runs if pid_at_work(directory) is not None]

    def remembered(self) -> Remembered:
        """The settings of earlier starts."""
        path = self.path / SETTINGS_NAME
        try:
            with storage_errors(path):
                text = path.read_bytes() if path.exists() else b"{}"
            return msgspec.json.decode(text, type=Remembered)
        except UNREADABLE as error:
            raise StorageError(f"{path} cannot be read: {error}; remove it") from None

    def remember(self, settings: Remembered) -> None:
        """Keeps settings for the next start."""
        if settings != self.remembered():
            with replacing_file(self.path / SETTINGS_NAME) as temporary:
                temporary.write_bytes(msgspec.json.encode(settings))
