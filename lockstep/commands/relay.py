"""`lockstep relay URL`: one relay process, from its self-check to the end of the run."""

from lockstep import __version__
from lockstep.console import messages
from lockstep.service.keys import load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.relay.process import RelayProcess
from node.relay.settings import RelaySettings
from node.system.malloc import keep_freed_memory


def relay(settings: RelaySettings, options: ServeOptions) -> None:
    """Runs a relay until the run is finished or a signal asks it to drain."""
    keep_freed_memory()
    log_versions(settings)
    messages.print(run_event_loop(_relay(settings, options)))


async def _relay(settings: RelaySettings, options: ServeOptions) -> str:
    """Returns how it ended, in words. The process is made inside the event loop, which its gRPC
    channel belongs to.
    """
    meter, key = OverheadMeter(), load_or_create_key(settings.directory)
    process = RelayProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    return await serve(
        process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
    )
