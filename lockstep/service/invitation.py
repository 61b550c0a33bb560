"""The line that an operator gives to volunteers: the command that joins the run, with its link."""

import socket
from collections.abc import Mapping
from dataclasses import replace

from coordinator.machine.events.acts import Mode
from lockstep.console import own_command
from node.control.addresses import address_towards
from protocol.addresses import split_address
from protocol.border.join_link import JoinLink, is_loopback
from protocol.errors import UnavailableError

EVERYWHERE = ("0.0.0.0", "::")
"""Hosts that stand for every address of this machine."""

FAR_ADDRESS = "192.0.2.1:9"
"""An address of the documentation's network: the way to it leaves this machine. Nothing is sent."""

NEEDED: Mapping[Mode, str] = {
    "open": "",
    "token": "; each new computer needs a token: lockstep run token create",
    "list": "; once you have allowed their keys: lockstep run allow KEY",
}
"""What newcomers need besides the link, by the rule of admission."""


def invitation(link: JoinLink, mode: Mode = "open") -> str:
    """The line to give to volunteers of a run that admits by this rule, or why nobody elsewhere can
    join. A link with a token needs nothing besides.
    """
    host, port = split_address(link.address)
    needed = "" if link.token else NEEDED[mode]
    if is_loopback(link.address):
        text = f"'{link.text()}'" if link.token else link.address
        return (
            f"only this machine can reach this run, with: {own_command()} join {text}; "
            f"start it with --listen 0.0.0.0:{port} for others{needed}"
        )
    hint = f" ({OWN_ADDRESS})" if host in EVERYWHERE else ""
    return f"volunteers join with: lockstep join '{reachable(link).text()}'{hint}{needed}"


OWN_ADDRESS = (
    "with this machine's own address: if others reach it by another, start the coordinator with "
    "--advertise HOST"
)
"""What a link of a coordinator that listens everywhere may lack."""


def reachable(link: JoinLink) -> JoinLink:
    """The link with an address of this machine where it names all of them."""
    host, port = split_address(link.address)
    return replace(link, address=f"{own_host()}:{port}") if host in EVERYWHERE else link


def page_url(link: JoinLink, listen: str, port: int) -> str:
    """The address of a page that listens at HOST:PORT, with this port, as others find it: on the
    host of the coordinator's link where it listens everywhere.
    """
    host, _ = split_address(listen)
    if host in EVERYWHERE:
        host, _ = split_address(reachable(link).address)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def own_host() -> str:
    """The address of this machine on the way to others, or its name where no way leads out."""
    try:
        return address_towards(FAR_ADDRESS).rpartition(":")[0]
    except UnavailableError:
        return socket.gethostname()
