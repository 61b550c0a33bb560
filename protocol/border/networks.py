"""Hosts and networks behind addresses: whose connections are counted together, and which addresses
lead into a network that only some can reach. Pure.
"""

import ipaddress
import re
from urllib.parse import unquote, urlsplit

from protocol.addresses import PUBLISHED_URL, has_login

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

IPV6_HOST_BITS = 64
"""Length of the network that counts as one host: a provider gives every home at least that much."""


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last bits."""


def ip_of(host: str) -> Ip | None:
    """The IP address that a host is written as; None for a name."""
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def host_of(peer: str) -> str:
    """The host of a gRPC peer such as `ipv4:192.0.2.7:50701`, as a key for counts and rates. All
    addresses of one IPv6 network are one host.
    """
    address = unquote(peer).partition(":")[2]
    host = address.rpartition(":")[0]
    ip = ip_of(host)
    if ip is None:
        return host
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network((ip, IPV6_HOST_BITS), strict=False))


_PUBLIC_NAME = re.compile(r"(?!.*\.(localhost|local|internal|arpa)$).+\.[a-z][a-z0-9-]*")
"""Names that are the same place for everybody; those of one network have no dot or a known end."""


def is_for_everybody(url: str) -> bool:
    """Whether a URL that a member states for a model may be shown to everybody: of a kind that
    nodes open, without a login, and not at this machine or in a private network.
    """
    if not url or not re.fullmatch(PUBLISHED_URL, url) or "::" in url or has_login(url):
        return False
    if not url.startswith("http"):
        return True  # a bucket or a repository
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    return is_outside(host) or (ip_of(host) is None and _PUBLIC_NAME.fullmatch(host) is not None)


def dialled_host(address: str) -> str:
    """The host that a dial of an announced address begins with, HOST:PORT or libp2p's."""
    return address.split("/")[2] if address.count("/") > 2 else address.rpartition(":")[0]


def is_outside(host: str) -> bool:
    """Whether an IP address is one of the public Internet, and not of a private network, of this
    machine or of nobody; False for a name.
    """
    ip = ip_of(host)
    if ip is None:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.sixtofour or (
            ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
        )
        if inner and not is_outside(str(inner)):
            return False
    return ip.is_global and not ip.is_multicast


def leads_back(address: str) -> bool:
    """Whether an announced address leads to the machine, or the cable, of the node that dials it
    and not to the node that announced it.
    """
    host = dialled_host(address)
    ip = ip_of(host)
    if ip is None:
        return host.rstrip(".").lower() == "localhost"
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast


def is_near(host: str) -> bool:
    """Whether a host, as `host_of` names it, is this machine or in a private network of it: a
    container's gateway, for one, stands for its machine.
    """
    ip = ip_of(host.partition("/")[0])
    return ip is None or ip.is_private or ip.is_unspecified
