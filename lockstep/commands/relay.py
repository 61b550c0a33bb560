"""`lockstep relay URL`: one relay process, from its self-check to the end of the run."""

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep import __version__
from lockstep.console import messages
from lockstep.service.home import Home, entered
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.relay.process import RelayProcess
from node.relay.settings import RelaySettings
from node.system.malloc import keep_freed_memory


def relay(settings: RelaySettings, options: ServeOptions, home: Home) -> None:
    """Runs a relay until the run is finished or a signal asks it to drain."""
    keep_freed_memory()
    log_versions(settings)
    with entered(settings.coordinator, "relay", home, options) as (place, key, serving):
        settings = replace(settings, directory=place)
        messages.print(run_event_loop(_relay(settings, serving, key)))


async def _relay(settings: RelaySettings, options: ServeOptions, key: Ed25519PrivateKey) -> str:
    """Returns how it ended, in words. The process is made inside the event loop, which its gRPC
    channel belongs to.
    """
    meter = OverheadMeter()
    process = RelayProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    return await serve(
        process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
    )
