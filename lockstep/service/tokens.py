"""Tokens that admit nodes: made on the coordinator's machine, which keeps only their digests."""

import secrets
from pathlib import Path

from coordinator.machine.events.acts import Token
from lockstep.service.order_socket import send
from protocol.ids import sha256

TOKEN_BYTES = 20
"""Random bytes of a token: more than anyone can guess."""


def made_up(kind: str) -> str:
    """A name for a token that no other has, unless by chance: the kind and a few characters."""
    return f"{kind}-{secrets.token_hex(2)}"


def new_token(
    directory: Path, name: str, *, uses: int, expires_s: int = 0, vouches: bool = False
) -> tuple[str, str]:
    """(Secret, answer in words) of a new token of the coordinator at work in a directory; fields
    and errors are those of `acts.Token` and `order_socket.send`.
    """
    secret = secrets.token_hex(TOKEN_BYTES)
    token = Token(name, sha256(secret.encode()), uses, expires_s, vouches)
    return secret, str(send(directory, token).get("said"))
