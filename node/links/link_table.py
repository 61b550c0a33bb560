"""Which links of a node stay open. Pure: `LinkTable` hears what happens and says who leaves.

    opened   a pipe has no proof yet; with too many of them one leaves for it
    proven   the link is its peer's from now on, in place of an older one, or it leaves itself
    ended    it is forgotten

Rules
- At most one link for each peer. When both ends dialled, both keep the same one (`replaces`).
- A few peers that this node does not keep may link too.
- Of the pipes without a proof the oldest of the most crowded host makes room for another.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from node.links.network import PeerAddress
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short

STRANGERS_MAX = 16
"""Links to peers that this node does not keep."""

UNPROVEN_MAX = 64
"""Pipes on which no key is proven yet; one more takes the place of another."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proven link, as one of its ends sees it."""

    instance: int
    """The peer's process."""
    dialled: bool
    """Whether this end opened its pipe."""
    relayed: bool
    """Whether a third machine carries its bytes."""


_Link = TypeVar("_Link")


@dataclass(frozen=True, slots=True)
class Departure(Generic[_Link]):
    """A link that leaves."""

    link: _Link
    reason: str
    finishes: bool = False
    """Whether it first ends what is under way on it."""


@dataclass(slots=True)
class _Place:
    remote: str
    dialled: PeerId | None
    """The peer that was dialled; None where the other end opened the pipe."""
    proven: Candidate | None = None
    leaves: bool = False


class LinkTable(Generic[_Link]):
    """The links of the node whose id is `own`."""

    def __init__(self, own: PeerId) -> None:
        self.kept: dict[PeerId, PeerAddress] = {}
        """The peers to which the node keeps links."""
        self._own = own
        self._open: dict[_Link, _Place] = {}
        """All of them, the oldest first, also unproven and replaced ones."""
        self._of_peers: dict[PeerId, _Link] = {}

    @property
    def open(self) -> Collection[_Link]:
        """All links, also unproven and replaced ones."""
        return self._open.keys()

    @property
    def peers(self) -> frozenset[PeerId]:
        """The peers with a proven link."""
        return frozenset(self._of_peers)

    @property
    def proven_links(self) -> Sequence[_Link]:
        """The links of these, by peer."""
        return [self._of_peers[peer] for peer in sorted(self._of_peers)]

    def link_with(self, peer: PeerId) -> _Link | None:
        """The proven link with a peer, if there is one."""
        return self._of_peers.get(peer)

    def opened(
        self, link: _Link, remote: str, dialled: PeerId | None
    ) -> Sequence[Departure[_Link]]:
        """A pipe is open; `dialled`: the peer that this end dialled for it."""
        crowded = () if dialled else self._one_too_many()
        self._open[link] = _Place(remote, dialled)
        return crowded

    def proven(self, link: _Link, peer: PeerId, candidate: Candidate) -> Sequence[Departure[_Link]]:
        """The other end has proved its key. `RemoteProtocolError`: another peer was dialled."""
        place = self._open[link]
        place.proven = candidate
        if place.dialled not in (None, peer):
            raise RemoteProtocolError(
                f"expected {short(place.dialled)} at {place.remote}, got {short(peer)}"
            )
        if peer not in self.kept and self._strangers >= STRANGERS_MAX:
            return [Departure(link, f"busy with {STRANGERS_MAX} links of others")]
        old = self._of_peers.get(peer)
        standing = None if old is None else self._open[old].proven
        if standing and not replaces(candidate, standing, own_is_lower=self._own < peer):
            return [Departure(link, "another link between the two is open")]
        self._of_peers[peer] = link
        if old is None or standing is None:
            return ()
        if candidate.instance == standing.instance:
            return [Departure(old, "replaced by another link between the two", finishes=True)]
        return [Departure(old, "its process is gone: another instance of the peer has linked")]

    def unlinked(self, link: _Link, peer: PeerId) -> bool:
        """The link carries nothing more; returns whether the peer is without one now."""
        if self._of_peers.get(peer) is not link:
            return False  # it was never the peer's, or another has replaced it
        del self._of_peers[peer]
        return True

    def closed(self, link: _Link) -> None:
        """Its pipe is closed."""
        del self._open[link]

    def dialled(self, link: _Link) -> PeerId | None:
        """The peer that was dialled for a link."""
        return self._open[link].dialled

    @property
    def _strangers(self) -> int:
        return sum(peer not in self.kept for peer in self._of_peers)

    def _one_too_many(self) -> Sequence[Departure[_Link]]:
        unproven = [
            link for link, place in self._open.items() if not (place.proven or place.leaves)
        ]
        if len(unproven) < UNPROVEN_MAX:
            return ()
        hosts = [host_part(self._open[link].remote) for link in unproven]
        kept = {host_part(each) for remote in self.kept.values() for each in remote.addresses}
        out = unproven[crowded_out(hosts, kept)]
        self._open[out].leaves = True
        return [Departure(out, "its place is needed")]


def replaces(new: Candidate, old: Candidate, *, own_is_lower: bool) -> bool:
    """Whether a new link takes the place of an old one. `own_is_lower`: this end's peer id is the
    lower one of the two.
    """
    if new.instance != old.instance:
        return True  # the peer's process started anew: the old link is dead
    if new.relayed != old.relayed:
        return old.relayed
    if new.dialled == old.dialled:
        return True  # an end dials again only when its old link is dead
    return own_is_lower == new.dialled


def host_part(address: str) -> str:
    """The part of an address that its connections have in common: all but the port."""
    return address.rpartition(":")[0]


def crowded_out(hosts: Sequence[str], members: Collection[str]) -> int:
    """The place of the pipe that makes room for another, among pipes of these hosts, the oldest
    first: the oldest of the host that has the most. Hosts of members keep their pipes as long as
    there are others.
    """
    others = [host for host in hosts if host not in members] or hosts
    counts = Counter(others)
    fullest = max(counts.values())
    return next(place for place, host in enumerate(hosts) if counts.get(host) == fullest)
