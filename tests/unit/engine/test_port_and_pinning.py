from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from k3perf.engine.pinning import pin_servers
from k3perf.engine.port import Listener, PortReservation, port_is_free, somebody_listens, who_listens
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
            assert not port_is_free("127.0.0.1", reservation.port)
        assert port_is_free("127.0.0.1", reservation.port)
    finally:
        reservation.release()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - a listener on every address takes it too
def test_that_somebody_listens_is_seen_and_hinders_nobody(address: str) -> None:
    reservation = PortReservation("127.0.0.1")
    try:
        assert not somebody_listens("127.0.0.1", reservation.port)
        with listener(reservation.port, address):
            assert somebody_listens("127.0.0.1", reservation.port)
            with socket.create_connection(("127.0.0.1", reservation.port)):
                assert somebody_listens("127.0.0.1", reservation.port)
        assert not somebody_listens("127.0.0.1", reservation.port)  # a connection that waits for its end is no listener
    finally:
        reservation.release()


def test_who_listens() -> None:
    reservation = PortReservation("127.0.0.1")
    try:
        assert who_listens(reservation.port, [os.getpid()]) is Listener.NOBODY
        with listener(reservation.port):
            assert who_listens(reservation.port, [os.getpid()]) is Listener.OWN
            assert who_listens(reservation.port, []) is Listener.STRANGER
    finally:
        reservation.release()


def test_every_thread_of_the_front_processes_is_bound() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
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
