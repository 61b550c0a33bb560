"""The referee's book of the operator's acts: what each of them forbids or demands from then on.

pause, finish    no round opens until resume, extend
ban              the key is not admitted until unban
extend, rate     commits carry the learning rate of the schedule that the chain says
"""

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered
from coordinator.machine.events.inputs import Event
from protocol.codec.chain import Reschedule
from protocol.runfile import RunSpec, ScheduleSpec
from protocol.schedule import in_force, scalars


class Orders:
    """The acts so far."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.given: list[Ordered] = []
        self.schedules: list[Reschedule] = []
        self.banned: set[str] = set()
        self._paused = self._finishing = False

    def take(self, event: Event) -> None:
        """Take any event of the run."""
        if isinstance(event, Ordered):
            self.given.append(event)
            self._obey(event.act)

    def _obey(self, act: Act) -> None:
        match act:
            case acts.Pause():
                self._paused = True
            case acts.Resume():
                self._paused = False
            case acts.Finish():
                self._finishing = True
            case acts.Extend():
                self._finishing = False
            case acts.Ban(target):
                self.banned.add(target)
            case acts.Unban(target):
                self.banned.discard(target)

    @property
    def ends(self) -> bool:
        """Whether the operator has ended the run."""
        return self._finishing

    @property
    def closed(self) -> str:
        """Why no round may open; empty when one may."""
        words = {"paused": self._paused, "ended": self._finishing}
        return " and ".join(word for word, holds in words.items() if holds)

    @property
    def schedule(self) -> ScheduleSpec:
        """The schedule in force."""
        return in_force(self._spec.schedule, self.schedules[-1:])

    def rates(self, step: int) -> tuple[int, int]:
        """Bits of the learning rate and decay that the commit of a step must carry."""
        return scalars(self.schedule, step)
