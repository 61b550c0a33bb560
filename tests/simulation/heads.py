"""The heads that a simulated node knows, as `node.control.heads` keeps them: it never forgets one,
and no fault of machines or networks makes a coordinator or a node see two histories.
"""

from node.control.heads import HeadKeeper
from protocol import wire_pb2 as wire
from protocol.codec.heads import Heads
from tests.simulation.checkers import require


class SimulatedHeads(HeadKeeper):
    """Puts the newest head into `hello`, and weighs each greeting."""

    def __init__(self, heads: Heads, hello: wire.Hello) -> None:
        self.heads, self._hello = heads, hello
        self.fill(hello)

    def greeted(self, welcome: wire.Welcome) -> None:
        self.fill(self._hello)
        newest, own = welcome.head.step if welcome.HasField("head") else -1, self.heads.own
        require(own is None or newest >= own.step, "the coordinator lacks", own, "it has", newest)
        super().greeted(welcome)
        require(self.heads.equivocation is None, "two histories", self.heads.equivocation)
