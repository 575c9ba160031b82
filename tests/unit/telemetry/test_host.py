from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from k3perf.telemetry.host import (
    CpuTimes,
    HostReader,
    parse_cpu_times,
    parse_pressure,
    parse_process_ticks,
    parse_status_bytes,
)


def test_cpu_times() -> None:
    text = "cpu  100 5 20 800 30 1 2 42 7 0\ncpu0 1 2 3\n"
    assert parse_cpu_times(text) == CpuTimes(busy=128, steal=42, total=128 + 800 + 30 + 42)
    assert parse_cpu_times("intr 5") is None
    assert parse_cpu_times("") is None


def test_pressure() -> None:
    text = (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=123456\nfull avg10=0.00 avg60=0.00"
        " avg300=0.00 total=7\n"
    )
    assert parse_pressure(text) == 123456
    assert parse_pressure("full total=7") is None


def test_ticks_of_a_process_with_brackets_in_its_name() -> None:
    text = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 321 54 0 0 20\n"
    assert parse_process_ticks(text) == 375
    assert parse_process_ticks("12 (x) S") is None


def test_status_lines() -> None:
    assert parse_status_bytes("VmRSS:\t  12 kB\nVmSwap:\t 3 kB\n", "VmSwap") == 3072
    assert parse_status_bytes("VmRSS:\t  12 kB\n", "VmSwap") is None


def test_this_process_is_read() -> None:
    sample = HostReader(lambda: (os.getpid(),)).sample()
    assert sample.resident_bytes is not None
    assert sample.resident_bytes > 1 << 20
    assert os.getpid() in sample.process_ticks
    assert sample.cpu is not None


def test_touched_memory_is_seen() -> None:
    reader = HostReader(lambda: (os.getpid(),))
    before = reader.sample().resident_bytes
    held = mmap.mmap(-1, 32 << 20)  # the heap may have as much left from an earlier test
    held.write(b"\x01" * len(held))
    after = reader.sample().resident_bytes
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(len(held), rel=0.25)


def test_a_gone_process_and_a_machine_without_proc_are_none() -> None:
    reader = HostReader(lambda: (2**22 + 1,), root=Path("/nonexistent"))
    sample = reader.sample()
    assert (sample.resident_bytes, sample.cpu, sample.psi_cpu_some_us, sample.process_ticks) == (
        None,
        None,
        None,
        {},
    )
    assert reader.proportional_bytes() is None
