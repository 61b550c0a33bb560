"""Takes the operator's orders, one after the other, and tells how the run stands.

`coordinator.service.ordering` carries them out. Only the desk knows which members a ban of a host
concerns: the machine knows no hosts.
"""

from collections.abc import Callable
from typing import Any

from coordinator import status_document
from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered
from coordinator.sequencer import Sequencer
from coordinator.service.server import CoordinatorService
from protocol.border.join_link import JoinLink
from protocol.wire_pb2 import CoordinatorMessage, Refused


class OperatorDesk:
    """The operator's desk of one coordinator. `link()` is the link that volunteers are given."""

    def __init__(
        self,
        sequencer: Sequencer,
        service: CoordinatorService,
        link: Callable[[], JoinLink | None] = lambda: None,
    ) -> None:
        self._sequencer, self._service, self._link = sequencer, service, link

    async def order(self, act: Act) -> Ordered:
        """Return once the act is on disk and its effects are out. Raises `SettingsError` for one
        that cannot be done or would change nothing.
        """
        ordered = await self._service.ordering.order(act)
        if isinstance(act, acts.Ban):
            refused = Refused(reason=self._sequencer.rounds.state.operator.banned(act.target))
            self._service.delivery.turn_away(act.target, CoordinatorMessage(refused=refused))
        return ordered

    async def document(self) -> dict[str, Any]:
        """The part of the status that only the operator is shown: members with their hosts, bans,
        tokens, the list, and the end of the chain of acts, all of it on disk.
        """
        async with self._service.ordering.writing:
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
