"""`lockstep relay URL`: one relay process, from its self-check to the end of the run."""

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep import __version__
from lockstep.console import messages
from lockstep.service.contact import first_word
from lockstep.service.directory import Owner, claimed
from lockstep.service.home import Home
from lockstep.service.keys import load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.control.first_contact import remember
from node.relay.process import RelayProcess
from node.relay.settings import RelaySettings
from node.system.malloc import keep_freed_memory
from protocol.border.join_link import parse_link


def relay(settings: RelaySettings, options: ServeOptions, home: Home) -> None:
    """Runs a relay until the run is finished or a signal asks it to drain."""
    keep_freed_memory()
    log_versions(settings)
    link = parse_link(settings.coordinator)
    known = home.knows(link.address)
    info = first_word(link, known=known, follow_parent=options.follow_parent)
    place = home.run(info.run_id)
    settings, options = replace(settings, directory=place), replace(options, directory=place)
    with claimed(place, Owner("relay", info.run_id, info.spec.name)):
        remember(place, link.address)
        key = load_or_create_key(home.path)
        messages.print(run_event_loop(_relay(settings, options, key)))


async def _relay(settings: RelaySettings, options: ServeOptions, key: Ed25519PrivateKey) -> str:
    """Returns how it ended, in words. The process is made inside the event loop, which its gRPC
    channel belongs to.
    """
    meter = OverheadMeter()
    process = RelayProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    return await serve(
        process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
    )
