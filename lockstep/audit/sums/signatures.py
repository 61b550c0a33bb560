"""What summers have signed, as a record has it beside a commit, checked."""

from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.codec.messagepack import converted
from protocol.errors import RemoteProtocolError
from protocol.sums.signed import SumSigned, is_signed


def signed_sums(commit: Commit, recorded: wire.Committed) -> list[SumSigned]:
    """The digests that nodes have signed for the ranges of a commit; what nobody has signed is left
    out.
    """
    said = map(_read, recorded.signed_sums)
    return [each for each in said if each is not None and is_signed(commit, each)]


def _read(said: wire.SumSigned) -> SumSigned | None:
    plain = [said.range, said.digest, said.public_key, said.signature, list(said.silent)]
    try:
        return converted(plain, SumSigned)
    except RemoteProtocolError:
        return None
