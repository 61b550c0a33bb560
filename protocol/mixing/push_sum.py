"""One-way links: push-sum (Kempe, Dobra, Gehrke, 2003; with gradients: Assran et al., 1810.10792).

A link may carry only one way: a node behind a filter sends and cannot be reached, or one direction
is lost. Then no symmetric matrix exists. A sender instead *divides* what it has among itself and
its receivers, so columns sum to one and the total is kept, but rows do not: a node with many
senders gathers too much. So every node has a weight, 1 at first, which it divides and sends in the
same way; value over weight is free of that bias and tends to the mean of all.

    z_i <- sum_j P_ij z_j        w_i <- sum_j P_ij w_j        x_i = z_i / w_i

An arrow that fails counts for neither end: the sender keeps the part. Over a strongly connected
sequence of graphs all x_i tend to sum z / sum w.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.mixing.topologies import Matrix

Arrow = tuple[PeerId, PeerId]
"""A one-way link: the sender, the receiver."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pushed:
    """All nodes' sums and weights."""

    sums: Values
    """[n, ...]: z, the values times their weights."""

    weights: Values
    """[n]: w; their sum is n for ever."""

    @classmethod
    def of(cls, values: Values) -> "Pushed":
        """Nodes that begin with these values, [n, ...], and equal weights."""
        return cls(values.copy(), np.ones(len(values)))

    @property
    def values(self) -> Values:
        """[n, ...]: what the nodes hold, without bias."""
        return self.sums / self._weights_like(self.sums)

    def mixed(self, matrix: Matrix) -> "Pushed":
        """After a round with this matrix, [n, n], whose columns sum to one."""
        flat = matrix @ self.sums.reshape(len(self.sums), -1)
        return Pushed(flat.reshape(self.sums.shape), matrix @ self.weights)

    def moved(self, changes: Values) -> "Pushed":
        """After local changes of the sums, [n, ...]: the mean of all moves by their mean."""
        return Pushed(self.sums + changes, self.weights)

    def _weights_like(self, values: Values) -> Values:
        return self.weights.reshape(-1, *(1,) * (values.ndim - 1))


def exponential_arrows(round: int, members: Iterable[PeerId]) -> tuple[Arrow, ...]:
    """Each sorted member sends to the one 2**b places further on, b = 0, 1, ... by turns: one
    message out and one in for each, any number of members.
    """
    if round < 0:
        raise LocalProtocolError(f"expected a round from 0 on, got {round}")
    ranked = sorted(set(members))
    count = len(ranked)
    if count < 2:
        return ()
    step = 1 << round % (count - 1).bit_length()
    return tuple((ranked[place], ranked[(place + step) % count]) for place in range(count))


def push_matrix(arrows: Iterable[Arrow], members: Collection[PeerId]) -> Matrix:
    """[n, n] for the sorted members, columns sum to one: each divides evenly among itself and the
    receivers that hold what it sent. `LocalProtocolError` for an arrow that is no pair of members,
    or that comes twice.
    """
    place = {member: index for index, member in enumerate(sorted(set(members)))}
    matrix = np.eye(len(place))
    for sender, receiver in arrows:
        if sender == receiver or sender not in place or receiver not in place:
            raise LocalProtocolError(f"expected an arrow of two members, got {sender}-{receiver}")
        if matrix[place[receiver], place[sender]]:
            raise LocalProtocolError(f"expected each arrow once, got {sender}-{receiver} twice")
        matrix[place[receiver], place[sender]] = 1
    divided: Matrix = matrix / matrix.sum(axis=0)
    return divided
