"""`lockstep join URL`: one node process, from the first contact to the goodbye."""

from lockstep import __version__
from lockstep.console import messages
from lockstep.service.keys import load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.process import NodeProcess
from node.settings import NodeSettings


def join(settings: NodeSettings, options: ServeOptions) -> None:
    """Runs a node until the run is finished, the coordinator removes it, or a signal stops it."""
    log_versions(settings)
    messages.print(run_event_loop(_join(settings, options)))


async def _join(settings: NodeSettings, options: ServeOptions) -> str:
    """Returns how it ended, in words. The process is made inside the event loop, which its gRPC
    channel belongs to.
    """
    meter, key = OverheadMeter(), load_or_create_key(settings.directory)
    process = NodeProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    return await serve(
        process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
    )
