"""One TCP port for one engine: reserved from before the start until after the stop, and
the proof of who listens on it.

The reservation is a socket that is bound with SO_REUSEADDR and never listens. vLLM
binds with SO_REUSEADDR too, which Linux allows while neither socket listens; the kernel
hands such a port to no one else, and a program without SO_REUSEADDR cannot bind it. A
program that has it still can, so the listener is always checked against the engine's
own processes.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final

from k3perf.errors import PreflightError

_LISTEN: Final = "0A"


class Listener(Enum):
    """Who serves a port: no process, processes of ours alone, or another one (too)."""

    NONE = auto()
    OWN = auto()
    STRANGER = auto()


class PortReservation:
    """Holds a free port of ``host`` until ``release``."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
        except OSError as error:
            self._socket.close()
            raise PreflightError(f"no port of {host} could be reserved: {error}") from error
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()


def port_is_taken(host: str, port: int) -> bool:
    """Whether the kernel would refuse the port because of a listener. Microseconds,
    where a look into the socket tables takes milliseconds.

    Of any address that takes the host's connections. ``who_listens`` identifies it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def listeners(port: int) -> list[tuple[str, int]]:
    """Address as the socket tables write it (hexadecimal, network order by 32-bit words
    of this machine) and inode of every listener, of any address and of both IP
    versions.
    """
    found: list[tuple[str, int]] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].rpartition(":")
                if fields[3] == _LISTEN and int(number, 16) == port:
                    found.append((address, int(fields[9])))
    return found


def _written_addresses(host: str) -> frozenset[str]:
    """How the tables write an IPv4 host, in the IPv4 one and mapped in the IPv6 one:
    each 32-bit word as this machine reads it.
    """
    plain = socket.gethostbyname(host)
    packed = (
        socket.inet_pton(socket.AF_INET, plain),
        socket.inet_pton(socket.AF_INET6, f"::ffff:{plain}"),
    )
    words = (
        (address[start : start + 4] for start in range(0, len(address), 4)) for address in packed
    )
    return frozenset(
        "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in address)
        for address in words
    )


def socket_inodes(pids: Iterable[int]) -> frozenset[int]:
    """Inodes of the sockets that the processes hold."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            for descriptor in list(os.scandir(f"/proc/{pid}/fd")):
                with suppress(OSError):
                    target = str(Path(descriptor.path).readlink())
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return frozenset(found)


def who_listens(host: str, port: int, own_pids: Iterable[int]) -> Listener:
    """Who takes connections to ``host``: listeners of that very address, else those of
    every address. Reads the machine's socket tables: milliseconds. Listeners of other
    addresses with the same port number do not matter.
    """
    found = listeners(port)
    addresses = _written_addresses(host)
    listening = {inode for address, inode in found if address in addresses} or {
        inode for address, inode in found if not int(address, 16)
    }
    if not listening:
        return Listener.NONE
    return Listener.OWN if listening <= socket_inodes(own_pids) else Listener.STRANGER
