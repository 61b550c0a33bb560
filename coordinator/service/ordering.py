"""Acts of the operator, and those that an auditor's evidence makes: one after the other, each
chained to the one before it.
"""

import asyncio
import logging
import time

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered
from coordinator.machine.rules import orders
from coordinator.sequencer import Sequencer
from protocol.errors import SettingsError

log = logging.getLogger("lockstep.coordinator")


class Ordering:
    """The acts of one run."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self.writing = asyncio.Lock()
        """Held while an act is on its way to the disk."""

    async def order(self, act: Act) -> Ordered:
        """Return once the act is on disk and its effects are out. Raises `SettingsError` for one
        that cannot be done or would change nothing.
        """
        rounds = self._sequencer.rounds
        async with self.writing:
            if objection := orders.objection(act, rounds):
                raise SettingsError(objection)
            event = acts.ordered(act, int(time.time()), rounds.state.operator.head)
            await self._sequencer.submit(event)
        log.warning(
            "operator order carried out",
            extra={
                "run": rounds.run_id,
                "act": acts.words(act),
                "number": rounds.state.operator.acts,
                "digest": event.digest.hex(),
            },
        )
        return event
