"""Makes the role of a summer for a relay (`node.sums`). The only door of a relay to numpy: one that
does not offer to add does not load it.
"""

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.relay.adder import AddingRole
from node.sums.part_check import part_header_of
from node.sums.reports import PartReports
from node.sums.summer import Summer
from protocol import wire_pb2 as wire
from protocol.codec.payload_shape import PayloadShape
from protocol.planner.parameters import size_of
from protocol.run_info import RunInfo


def adding_role(
    info: RunInfo, key: Ed25519PrivateKey, send: Callable[[wire.NodeMessage], None]
) -> AddingRole:
    """The role in a run whose model has a layout that is written down; else `SettingsError`."""
    shape = PayloadShape.of(info.spec.algorithm, size_of(info.spec.model).chunks)
    return AddingRole(
        part_header_of(shape),
        PartReports(send).add,
        lambda parts: Summer(info, key, shape, parts, send),
    )
