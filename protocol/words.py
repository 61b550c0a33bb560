"""Numbers of things in words, for messages."""


def quantity(count: int, noun: str) -> str:
    """A number of things: "1 member", "2 members"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
