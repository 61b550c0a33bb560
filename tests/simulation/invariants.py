"""Checks the invariants of the product's machines after each of their events."""

from typing import Any

from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange


def checks() -> list[tuple[Any, str, Any]]:
    """(owner, name, value) of each attribute to replace, as long as a world lasts."""
    handle = Exchange.handle

    def handle_and_validate(
        exchange: Exchange, event: events.Event, now_ms: int
    ) -> list[events.Effect]:
        effects = handle(exchange, event, now_ms)
        exchange.validate()
        return effects

    return [(Exchange, "handle", handle_and_validate)]
