"""The kinds of transports, as settings name them."""

from protocol.errors import SettingsError

KINDS = ("grpc", "libp2p")
"""The transports that exist, the faster first."""


def parse_kinds(text: str) -> tuple[str, ...]:
    """The kinds in "grpc,libp2p"; `SettingsError` for unknown ones."""
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SettingsError(
            f"expected transports among {', '.join(KINDS)}, got {', '.join(unknown) or 'none'}"
        )
    return kinds
