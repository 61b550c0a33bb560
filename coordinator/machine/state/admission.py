"""The keys that a run admits. Pure.

    open    every key
    token   a key that has shown a token, or was a member when the rule was made
    list    a key on the operator's list, or one that was admitted before

A key that was admitted once stays admitted until the operator takes it off; so a token counts keys,
not joins. A vouched key is admitted always. A token is known by the SHA-256 of its secret, and
compared in constant time. It expires by the wall clock of the moment at which it is shown, which is
part of the event: a replay decides the same.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.machine.events.acts import Mode, Token
from protocol.clock import length_text
from protocol.ids import Digest, PeerId

TOKENS_MAX = 256
"""Tokens at once; each that is shown is compared with all of them."""

ADMITTED_MAX = 16_384
"""Keys that are remembered as admitted: four times the members of the largest run."""

ALLOWED_MAX = 4096
"""Keys on the list, as many as a run may have members."""


ASK = ": ask the run's operator for a new one"
"""The cure of a token that admits nobody."""


@dataclass(slots=True)
class UsedToken:
    """A token and the number of keys that it has admitted."""

    token: Token
    uses: int = 0


@dataclass(slots=True)
class Admission:
    """The rule by which a run admits keys, and those that it has admitted."""

    mode: Mode = "open"
    tokens: dict[str, UsedToken] = field(default_factory=dict)
    """Tokens by name, without those that were revoked."""
    admitted: dict[PeerId, str] = field(default_factory=dict)
    """Keys, and the names of the tokens that admitted them; empty where the key was a member."""
    allowed: set[PeerId] = field(default_factory=set)

    def change(self, mode: Mode, members: Iterable[PeerId]) -> None:
        """Make another rule; the present members stay admitted."""
        if self.mode == "open" and mode != "open":
            for peer in members:
                self.admitted.setdefault(peer, "")
        self.mode = mode

    def token_of(self, digest: bytes) -> UsedToken | None:
        """The token whose secret has this digest."""
        found = None
        for each in self.tokens.values():
            if hmac.compare_digest(each.token.digest, digest):
                found = each
        return found

    def flaw(self, peer: PeerId, digest: bytes, shown_s: int, *, vouched: bool) -> str:
        """Why a token gives this key nothing; empty when it gives it something."""
        used = self.token_of(digest)
        if used is None:
            return f"the token is not one of this run's, or was revoked{ASK}"
        token = used.token
        if token.expires_s and shown_s >= token.expires_s:
            ago = length_text(shown_s - token.expires_s, "s")
            return f"the token {token.name} expired {ago} ago by the coordinator's clock{ASK}"
        if peer in self.admitted and not (token.vouches and not vouched):
            return "the key is admitted already"
        if self.mode == "list" and not token.vouches:
            return "this run goes by its operator's list, and no token counts"
        if self.admitted.get(peer) != token.name and used.uses >= token.uses:
            keys = "1 key" if used.uses == 1 else f"{used.uses} keys"
            return f"the token {token.name} is used up: it has admitted {keys}{ASK}"
        if peer not in self.admitted and len(self.admitted) >= ADMITTED_MAX:
            return f"this run has admitted {ADMITTED_MAX} keys, and remembers no more"
        return ""

    def use(self, peer: PeerId, digest: Digest) -> UsedToken | None:
        """Admit a key by a token that has no flaw."""
        used = self.token_of(digest)
        if used is not None:
            used.uses += self.admitted.get(peer) != used.token.name
            self.admitted[peer] = used.token.name
        return used

    def refusal(self, peer: PeerId, *, vouched: bool) -> str:
        """Why the run does not admit a key; empty when it does."""
        if self.mode == "open" or vouched or peer in self.admitted or peer in self.allowed:
            return ""
        if self.mode == "token":
            return (
                "this run takes nodes with a token: ask its operator for one, then join with "
                "--token TOKEN; an auditor is admitted once the operator has named it, with "
                f"`lockstep run auditor add {peer}`"
            )
        return (
            f"this run takes only the keys on its operator's list: ask the operator to allow {peer}"
        )
