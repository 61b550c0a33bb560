"""The run as a coordinator describes it, judged before anything is done for it."""

from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError, VersionError
from protocol.ids import RunId
from protocol.limits import PROTOCOL_VERSION
from protocol.run_info import RunInfo
from protocol.runfile import parse_run_json, run_id


def checked_run(run: wire.Run, address: str) -> RunInfo:
    """The run that a coordinator at `address` described. Raises `VersionError`, `SettingsError`,
    `RemoteProtocolError`.
    """
    if run.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"the coordinator at {address} speaks protocol version "
            f"{run.protocol_version}, this node {PROTOCOL_VERSION}: update the older one"
        )
    spec = parse_run_json(run.run_json, f"run file from {address}")
    if run_id(spec, run.coordinator_key) != run.run_id:
        raise RemoteProtocolError(
            f"{address}: expected the hash of the run file as run id, got another one"
        )
    return RunInfo(spec, RunId(run.run_id), run.coordinator_key)
