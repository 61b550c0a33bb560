"""The attacks, by name, each with the findings that it plays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.processes.strangers import door, links, rounds, texts
from tests.processes.strangers.client import Target


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    finding: str
    """Numbers of the findings that it plays."""
    words: str
    """What the strangers do, for a table."""
    act: str
    """The count of `Target.did` without which it was not played."""
    work: Callable[[Target], Awaitable[None]]
    """Does it until it is cancelled."""


ATTACKS: dict[str, Attack] = {
    "other-version": Attack(
        "F1", "a payload of another protocol version", "published", links.other_version
    ),
    "false-receipts": Attack(
        "F2", "receipts for payloads that do not exist", "confirmed", rounds.false_receipts
    ),
    "wrong-states": Attack("F3", "8 keys report wrong states", "lies", rounds.wrong_states),
    "mutual-confirmation": Attack(
        "F4", "two keys confirm each other", "confirmed", rounds.mutual_confirmation
    ),
    "unavailable-payloads": Attack(
        "F5", "4 keys announce what nobody can fetch", "announced", rounds.unavailable_payloads
    ),
    "silence": Attack("F5", "8 ready keys only beat", "ignored", rounds.silence),
    "places": Attack(
        "F6", "offers that no author has signed, and eight of one", "offers", links.places
    ),
    "ghosts": Attack("F7", "160 keys that are never ready", "welcomed", door.ghosts),
    "joins": Attack("F7, F9", "keys join and leave without end", "joined", door.joins),
    "receipts": Attack("F9", "receipts of 4096 payloads without end", "receipts", door.receipts),
    "silent-connections": Attack(
        "F10", "1200 silent connections", "others let in", door.silent_connections
    ),
    "relay-places": Attack("F11", "24 relays that do nothing", "welcome", door.relay_places),
    "noise": Attack("F12", "random bytes as payload, served", "published", links.noise),
    "absurd-numbers": Attack("F12", "absurd sizes and losses", "announced", rounds.absurd_numbers),
    "addresses": Attack(
        "F13", "8 keys announce a victim's address", "victim dialled", links.addresses
    ),
    "dumb-pipes": Attack("F14", "90 dumb connections at each node", "connected", door.dumb_pipes),
    "calls": Attack("F15", "64 callers without a pause", "answered", door.calls),
    "unread-sessions": Attack("F16", "sessions that nobody reads", "hellos", door.unread_sessions),
    "claimed-speed": Attack("F17", "a share in a millisecond", "announced", rounds.claimed_speed),
    "copies": Attack("F12, F18", "another's payload, with an absurd loss", "copied", links.copies),
    "wrong-sizes": Attack("F20", "offers with ever other sizes", "offers", links.wrong_sizes),
    "texts": Attack("F20, F23", "forged lines, escapes, markup", "ready with markup", texts.texts),
    "reading": Attack(
        "F21", "old payloads without end, by no member", "payloads read", links.reading
    ),
    "copied-key": Attack("F25", "a node's key on another machine", "refused", door.copied_key),
    "garbage": Attack("F31", "HTTP/1, TLS, broken frames at every port", "connected", door.garbage),
}
