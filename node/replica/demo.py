"""The replica of a run with DeMo: gradients enter a momentum, votes are taken out of it, and a
commit's step is the sign of their sum.
"""

from collections.abc import Sequence

from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import Extraction
from node.replica.in_place import InPlaceReplica


class DemoReplica(InPlaceReplica):
    """State of one node for one run with DeMo, on one device."""

    engine: Momentum

    def accumulate(self) -> None:
        self.engine.accumulate({name: p.grad for name, p in self.trainee.parameters.items()})

    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        return self.engine.extract()

    def _begin_empty(self) -> None:
        settings = DemoSettings.among(self._spec.algorithm.model_dump())
        self.engine = Momentum(self.layout, settings, self.trainee.device)

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        apply(self.layout, self.committed, contributions, *rates, backend=self.engine.backend)
