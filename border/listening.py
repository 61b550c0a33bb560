"""Sockets that listen at an address as its owner types it."""

import errno
import socket

from protocol.addresses import listen_error, split_address
from protocol.shortage import shortages

EVERYWHERE = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of the machine, of both families."""


def listening(listen: str) -> list[socket.socket]:
    """Sockets bound to HOST:PORT, one for each address of the host, all with the same port; port 0
    takes a free one. Raises `AddressInUseError`, `SettingsError`, `ShortageError`.
    """
    host, port = split_address(listen)
    bound = list[socket.socket]()
    try:
        with shortages(f"listen on {listen}"):
            if host in EVERYWHERE:
                return [_everywhere(port)]
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, address in dict.fromkeys((each[0], str(each[4][0])) for each in found):
                port = bound[0].getsockname()[1] if bound else port
                bound.append(socket.create_server((address, port), family=family))
    except OSError as error:
        for each in bound:
            each.close()
        raise listen_error(error, listen) from None
    return bound


def _everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise  # IPv6 is not switched off
    return socket.create_server(("0.0.0.0", port))
