"""`lockstep join URL`: one node process, from the first contact to the goodbye."""

from dataclasses import replace
from importlib.util import find_spec

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep import __version__
from lockstep.console import messages
from lockstep.own_packages import NODE_EXTRA
from lockstep.service.contact import first_word
from lockstep.service.directory import Owner, claimed
from lockstep.service.home import Home, Remembered, take_over
from lockstep.service.keys import load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.control.first_contact import remember
from node.settings import NodeSettings
from protocol.border.join_link import parse_link
from protocol.errors import DataError

MANIFEST_NAME = "manifest.json"
"""The file that tells prepared data from any other directory."""


def join(settings: NodeSettings, options: ServeOptions, home: Home) -> None:
    """Runs a node until the run is finished, the coordinator removes it, or a signal stops it.

    What can be judged is judged before torch is imported: arguments, then whether the coordinator
    answers, then whether the directory is free.
    """
    _check_before_imports(settings)
    log_versions(settings)
    if taken := take_over(home):
        messages.print(taken, soft_wrap=True)
    link = parse_link(settings.coordinator)
    known = home.knows(link.address)
    info = first_word(link, known=known, follow_parent=options.follow_parent)
    place = home.run(info.run_id)
    name = settings.name or home.remembered().name
    settings = replace(settings, directory=place, name=name)
    options = replace(options, directory=place)
    with claimed(place, Owner("node", info.run_id, info.spec.name)):
        home.remember(Remembered(name))
        remember(place, link.address)
        key = load_or_create_key(home.path)
        messages.print(run_event_loop(_join(settings, options, key)))


def _check_before_imports(settings: NodeSettings) -> None:
    for package in sorted(NODE_EXTRA):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if settings.data and not (settings.data / MANIFEST_NAME).is_file():
        raise DataError(
            f"{settings.data}: expected a prepared corpus with a {MANIFEST_NAME}, found none; "
            "prepare it with `lockstep data prepare`"
        )


async def _join(settings: NodeSettings, options: ServeOptions, key: Ed25519PrivateKey) -> str:
    """Returns how it ended, in words. The process is made inside the event loop, which its gRPC
    channel belongs to.
    """
    from node.process import NodeProcess

    meter = OverheadMeter()
    process = NodeProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    return await serve(
        process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
    )
