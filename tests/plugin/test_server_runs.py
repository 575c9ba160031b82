"""Whole runs against servers that k3perf did not start: the stand-in engine with every
route, and the mock server without vLLM's own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import yaml
from tests.plugin.sites import STAND_IN, Site

from k3perf.engine.port import PortReservation
from k3perf.engine.render import PROBE_EXTENSION
from k3perf.errors import ExitStatus
from k3perf.load.mock_server.process import start_mock_server

FP8 = {"model": "x", "kv-cache-dtype": "fp8", "max_model_len": 4096}


@contextlib.contextmanager
def by_hand(site: Site, *, extension: bool = True, **changed: object) -> Iterator[str]:
    """The stand-in engine as a person would start it; its address."""
    config = site.root / "by_hand.yaml"
    config.write_text(yaml.safe_dump({**FP8, **changed}))
    reservation = PortReservation("127.0.0.1")
    port = reservation.port
    reservation.release()
    options = {"--config": str(config), "--port": str(port), "--served-model-name": "chat"}
    if extension:
        options["--worker-extension-cls"] = PROBE_EXTENSION
    words = [word for pair in options.items() for word in pair]
    process = subprocess.Popen(
        [sys.executable, str(STAND_IN), "--host", "127.0.0.1", *words],
        env=site.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on {port}")


def test_lock_and_memory_of_a_running_server_are_judged(site: Site) -> None:
    with by_hand(site) as address:
        run = site.pytest("-k", "fp8_kv", "--k3-server", address, "-rs")
        drift = site.k3perf("drift", "fp8_kv", "--server", address)
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert f"measured on {address}, which k3perf did not start" in run.stdout
    assert "not visible on a running server: its start, its log" in run.stdout
    # the baseline of this target holds ratios, which one server cannot give
    assert "output_tokens_per_s: not judged, the baseline holds ratios" in run.stdout
    assert drift.returncode == ExitStatus.OK, drift.stdout + drift.stderr
    assert "PASS: every visible key is as approved" in drift.stdout


def test_without_the_extension_weights_are_named_and_not_judged(site: Site) -> None:
    site.behave(weights_bytes=2_000_000_000, call_log=str(site.root / "calls"))
    with by_hand(site, extension=False) as address:
        run = site.pytest("-k", "fp8_kv", "--k3-server", address)
    assert "weights_bytes: not judged, the server does not show it" in run.stdout
    assert "was started without --worker-extension-cls" in run.stdout
    assert not (site.root / "calls").exists(), "a method that no worker has is not called"


def test_an_undone_flag_is_drift_with_the_flags_name(site: Site) -> None:
    site.behave(cache_config={"cache_dtype": "auto"})
    with by_hand(site) as address:
        run = site.pytest("-k", "fp8_kv", "--k3-server", address)
        drift = site.k3perf("drift", "fp8_kv", "--server", address)
    assert run.returncode == ExitStatus.CONFIG_DRIFT, run.stdout + run.stderr
    assert drift.returncode == ExitStatus.CONFIG_DRIFT, drift.stdout + drift.stderr
    for text in (run.stdout, drift.stdout):
        assert "cache_config.cache_dtype (--kv-cache-dtype)" in text


def test_more_memory_of_a_running_server_is_a_regression(site: Site) -> None:
    site.behave(weights_bytes=2_000_000_000)
    with by_hand(site) as address:
        run = site.pytest("-k", "fp8_kv", "-m", "memory", "--k3-server", address)
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    assert "weights_bytes" in run.stdout


def test_the_mock_server_shows_its_context_length_alone(site: Site) -> None:
    (site.root / "conftest.py").unlink()  # the mock has the real clock
    with start_mock_server() as mock:
        run = site.pytest("-k", "fp8_kv", "-m", "configuration", "--k3-server", mock.base_url)
        drift = site.k3perf("drift", "fp8_kv", "--server", mock.base_url, "--json")
        made = site.k3perf("init", "--no-record", "--suite", "made", "--from", mock.base_url)
    # 4,096 tokens are approved, the mock offers 1,048,576
    assert run.returncode == ExitStatus.CONFIG_DRIFT, run.stdout + run.stderr
    assert "model_config.max_model_len (--max-model-len): was 4096, is 1048576" in run.stdout
    assert "415 of 416 keys of the lock are not visible and not compared" in run.stdout
    assert "VLLM_SERVER_DEV_MODE=1" in run.stdout
    (found,) = json.loads(drift.stdout)
    assert drift.returncode == ExitStatus.CONFIG_DRIFT
    assert found["compared_count"] == 1
    assert len(found["not_visible"]) == 415
    assert set(found["blind"]) == {"lock", "workers", "kv_capacity_tokens"}
    assert made.returncode == ExitStatus.OK, made.stdout + made.stderr
    assert "max_model_len: 1048576" in (site.root / "made/configs/tuned.yaml").read_text()


def test_without_a_visible_key_no_configuration_passes(site: Site) -> None:
    (site.root / "conftest.py").unlink()
    with start_mock_server() as mock:
        (site.root / "conftest.py").write_text(
            "from k3perf.telemetry.outside_server import OutsideServer\n"
            "OutsideServer._context_length = lambda self: {}\n"
        )
        run = site.pytest(
            "-k", "fp8_kv", "-m", "configuration", "-rs", "--k3-server", mock.base_url
        )
    assert "nothing of the lock is visible" in run.stdout
    assert "1 skipped" in run.stdout
    assert "passed" not in run.stdout


def test_one_server_serves_one_config(site: Site) -> None:
    run = site.pytest("--k3-server", "http://127.0.0.1:9")
    assert run.returncode == ExitStatus.USAGE
    assert "a server runs one config, but this call selects 2" in run.stdout + run.stderr


def test_a_server_that_does_not_answer_is_invalid(site: Site) -> None:
    run = site.pytest("-k", "fp8_kv", "--k3-server", "http://127.0.0.1:9")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert "/v1/models" in run.stdout


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "server"])
def test_a_target_that_a_cluster_starts_is_recorded_and_gated(site: Site, kind: str) -> None:
    path = site.root / "perf_tests" / "targets" / "tiny.yaml"
    target = yaml.safe_load(path.read_text())
    target["hardware"] = {"kind": "nvidia", "hardware_class": "gb300-x8", "device_count": 8}
    target["parallelism"] = {"tensor": 8}
    target["launch"] = {"kind": kind}
    path.write_text(yaml.safe_dump(target))
    shutil.rmtree(site.root / "baselines")
    with by_hand(site) as address:
        words = ("-k", "fp8_kv", "--k3-server", address)
        record = site.pytest(*words, "--k3-record", "--k3-sessions", "3", "--k3-results", "rec")
        assert record.returncode == ExitStatus.OK, record.stdout + record.stderr
        assert "they do not include the variation between starts" in record.stdout
        proposed = site.k3perf("baseline", "propose", "rec")
        assert proposed.returncode == ExitStatus.OK, proposed.stdout + proposed.stderr
        accepted = site.k3perf("baseline", "accept", "--reason", "recorded on the cluster")
        assert accepted.returncode == ExitStatus.OK, accepted.stderr
        same = site.pytest(*words)
        assert same.returncode in (ExitStatus.OK, ExitStatus.SUSPECT), same.stdout + same.stderr
        assert "output_tokens_per_s" in same.stdout
    site.behave(token_s=0.03)  # three times as long as recorded
    with by_hand(site) as address:
        slow = site.pytest("-k", "fp8_kv", "-m", "throughput", "--k3-server", address)
        both = site.pytest(
            "-k", "fp8_kv", "-m", "throughput", "--k3-server", address, "--k3-server", f"{address}/"
        )
    assert slow.returncode == ExitStatus.SUSPECT, slow.stdout + slow.stderr
    assert "restart it or give a second --k3-server" in slow.stdout
    assert both.returncode == ExitStatus.SUSPECT, "the same server twice is one server"


def test_without_an_address_such_a_target_names_the_option(site: Site) -> None:
    path = site.root / "perf_tests" / "targets" / "tiny.yaml"
    target = yaml.safe_load(path.read_text())
    target["launch"] = {"kind": "slurm"}
    path.write_text(yaml.safe_dump(target))
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.USAGE
    assert "--k3-server http://HOST:PORT" in run.stdout + run.stderr
