"""Takes the operator's orders, one after the other, and tells how the run stands.

An order is judged, becomes an event that is linked to the one before it, and is answered once it is
on disk; an auditor's evidence too. Only the desk knows which members a ban of a host concerns: the
machine knows no hosts.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from coordinator import status_document
from coordinator.machine.operator import acts, orders
from coordinator.machine.operator.acts import Act, Ordered
from coordinator.sequencer import Sequencer
from coordinator.service.server import CoordinatorService
from protocol.border.join_link import JoinLink
from protocol.errors import SettingsError
from protocol.wire_pb2 import CoordinatorMessage, Refused

log = logging.getLogger("lockstep.coordinator")


class OperatorDesk:
    """The operator's desk of one coordinator. `link()` is the link that volunteers are given,
    `clock_s()` the wall clock.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        service: CoordinatorService,
        link: Callable[[], JoinLink | None] = lambda: None,
        clock_s: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        self._sequencer, self._service = sequencer, service
        self._link, self._clock_s = link, clock_s
        self._writing = asyncio.Lock()
        service.evidence.order = self.order

    async def order(self, act: Act) -> Ordered:
        """Return once the act is on disk and its effects are out. Raises `SettingsError` for one
        that cannot be done or would change nothing.
        """
        rounds = self._sequencer.rounds
        async with self._writing:
            if objection := orders.objection(act, rounds.state, rounds.members):
                raise SettingsError(objection)
            event = acts.ordered(act, self._clock_s(), rounds.state.operator.head)
            await self._sequencer.submit(event)
        log.warning(
            "operator",
            extra={
                "run": rounds.run_id,
                "act": acts.words(act),
                "number": rounds.state.operator.acts,
                "digest": event.digest.hex(),
            },
        )
        if isinstance(act, acts.Ban):
            refused = Refused(reason=rounds.state.operator.banned(act.target))
            self._service.delivery.turn_away(act.target, CoordinatorMessage(refused=refused))
        return event

    async def document(self) -> dict[str, Any]:
        """The part of the status that only the operator is shown: members with their hosts, bans,
        tokens, the list, and the end of the chain of acts, all of it on disk.
        """
        async with self._writing:
            return self._document()

    def _document(self) -> dict[str, Any]:
        rounds, now_ms, link = self._sequencer.rounds, self._sequencer.now_ms(), self._link()
        operator, admission = rounds.state.operator, rounds.state.operator.admission
        hosts = self._service.node_sessions.hosts
        members = [
            status_document.member_document(rounds, member, now_ms)
            | {"host": hosts.get(member.peer, ""), "addresses": list(member.addresses)}
            for member in rounds.members
        ]
        return {
            "run_id": rounds.run_id,
            "name": rounds.spec.name,
            "link": link.text() if link else "",
            "members": members,
            "bans": [{"target": target, "reason": why} for target, why in operator.bans.items()],
            "away": [
                {
                    "peer_id": peer,
                    "reason": away.reason,
                    "seconds": max(0, away.until_ms - now_ms) // 1000,
                }
                for peer, away in operator.away.items()
                if away.until_ms > now_ms
            ],
            "admission": {
                "mode": admission.mode,
                "allowed": sorted(admission.allowed),
                "admitted": dict(sorted(admission.admitted.items())),
                "tokens": [
                    {
                        "name": name,
                        "uses": used.uses,
                        "uses_max": used.token.uses,
                        "expires_s": used.token.expires_s,
                        "vouches": used.token.vouches,
                    }
                    for name, used in admission.tokens.items()
                ],
            },
            "auditors": sorted(rounds.state.verdicts.auditors),
            "audit": {"acts": operator.acts, "head": operator.head.hex()},
        }
