from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from k3perf.engine.pinning import pin_servers
from k3perf.engine.port import (
    Listener,
    PortReservation,
    port_is_taken,
    who_listens,
)
from k3perf.errors import PreflightError


@contextmanager
def listener(port: int, address: str = "127.0.0.1") -> Iterator[None]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(1)
        yield


def test_a_reserved_port_is_kept_from_others_and_open_to_a_server() -> None:
    reservation = PortReservation("127.0.0.1")
    try:
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", reservation.port))  # without SO_REUSEADDR
        with listener(reservation.port):  # as vLLM binds
            assert port_is_taken("127.0.0.1", reservation.port)
        assert not port_is_taken("127.0.0.1", reservation.port)
    finally:
        reservation.release()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - a listener on every address takes it too
def test_that_a_port_is_taken_is_seen_and_hinders_nobody(address: str) -> None:
    reservation = PortReservation("127.0.0.1")
    try:
        assert not port_is_taken("127.0.0.1", reservation.port)
        with listener(reservation.port, address):
            assert port_is_taken("127.0.0.1", reservation.port)
            with socket.create_connection(("127.0.0.1", reservation.port)):
                assert port_is_taken("127.0.0.1", reservation.port)
        assert not port_is_taken("127.0.0.1", reservation.port)
    finally:
        reservation.release()


HOST = "127.0.0.1"


def test_who_listens() -> None:
    reservation = PortReservation(HOST)
    try:
        assert who_listens(HOST, reservation.port, [os.getpid()]) is Listener.NONE
        for address in (HOST, "0.0.0.0"):  # noqa: S104 - both take the host's connections
            with listener(reservation.port, address):
                assert who_listens(HOST, reservation.port, [os.getpid()]) is Listener.OWN
                assert who_listens("localhost", reservation.port, [os.getpid()]) is Listener.OWN
                assert who_listens(HOST, reservation.port, []) is Listener.STRANGER
    finally:
        reservation.release()


STRANGER = """
import socket, sys
with socket.socket({family}) as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if {family} == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(("{address}", {port}))
    server.listen(1)
    print(1, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("family", "address", "alone", "who"),
    [
        (
            "socket.AF_INET",
            HOST,
            Listener.STRANGER,
            Listener.STRANGER,
        ),  # both listen: who answers is the kernel's choice
        ("socket.AF_INET", "127.0.0.2", Listener.NONE, Listener.OWN),
        ("socket.AF_INET6", "::1", Listener.NONE, Listener.OWN),
        (
            "socket.AF_INET6",
            "::",
            Listener.STRANGER,
            Listener.OWN,
        ),  # the tables do not say whether it takes IPv4 too
    ],
)
def test_who_listens_beside_a_stranger_with_the_same_number(
    family: str, address: str, alone: Listener, who: Listener
) -> None:
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind((HOST, 0))
        port = own.getsockname()[1]
        code = STRANGER.format(family=family, address=address, port=port)
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdin is not None
            stranger.stdout.readline()
            assert who_listens(HOST, port, [os.getpid()]) is alone
            own.listen(1)
            assert who_listens(HOST, port, [os.getpid()]) is who
            stranger.stdin.close()


def test_a_connection_that_waits_for_its_end_is_nobodys_listener() -> None:
    """The kernel keeps it for a minute with the server's address and no inode: the next
    engine on that port would be a stranger's.
    """
    with socket.socket() as server:
        # as every server does
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, 0))
        server.listen(1)
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # first, so that its end waits
            assert client.recv(1) == b""
        assert who_listens(HOST, port, [os.getpid()]) is Listener.OWN
    assert who_listens(HOST, port, [os.getpid()]) is Listener.NONE
    assert not port_is_taken(HOST, port)


def test_a_dual_stack_server_takes_the_hosts_connections() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("::", 0))
        server.listen(1)
        assert who_listens(HOST, server.getsockname()[1], [os.getpid()]) is Listener.OWN


def test_an_address_mapped_into_the_other_family_is_the_same_address() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.bind((f"::ffff:{HOST}", 0))
        server.listen(1)
        assert who_listens(HOST, server.getsockname()[1], []) is Listener.STRANGER


def test_every_thread_of_the_front_processes_is_bound() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(1,"
        " flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert pin_servers(process.pid, [process.pid], ()) == ()
        assert pin_servers(process.pid, [process.pid], (cpu,)) == (process.pid,)
        tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208
        assert len(tasks) == 2
        assert {tuple(os.sched_getaffinity(task)) for task in tasks} == {(cpu,)}
        with pytest.raises(PreflightError, match=r"correct pinning\.server_cpus"):
            pin_servers(process.pid, [process.pid], (4000,))
        process.communicate(b"")
