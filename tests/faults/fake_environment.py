"""An engine environment whose Python is the fake engine: what ``--k3-engine-python``
and ``--k3-ab-base`` get in whole-suite tests.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import yaml

from tests.engine_answers import ANSWERS
from tests.plugin.stand_in import own_clock
from tests.plugin.stand_in.own_clock import wear

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


def fake_python(environment: Path, *faults: str) -> Path:
    """``environment/bin/python``, a script that takes vLLM's server command line and
    runs the fake engine with these faults.
    """
    path = environment / "bin" / "python"
    path.parent.mkdir(parents=True)
    flags = [part for fault in faults for part in ("--fault", fault)]
    command = [sys.executable, "-S", "-E", str(FAKE_ENGINE)]
    path.write_text(f'#!/bin/sh\n{ANSWERS}exec {shlex.join(command)} "$@" {shlex.join(flags)}\n')
    path.chmod(0o755)
    return path


def shrink_suite(root: Path, *, load_s: float, stall_s: float) -> None:
    """Make the copied suite small enough for seconds: one round's work is four requests
    of four tokens, two rounds, one session.
    """
    path = root / "targets" / "cpu-gqa.yaml"
    document = yaml.safe_load(path.read_text())
    document["hardware"] = {"kind": "cpu", "hardware_class": "fake"}
    document["pinning"] = {}
    document["measurement"].update(
        warm_up_rounds=0,
        minimum_rounds=2,
        maximum_rounds=2,
        minimum_sessions=1,
        maximum_sessions=2,
        repeat_invalid_rounds=1,
    )
    document["stage_deadlines"] = {"load_s": load_s, "stop_s": 1}
    # the machine that runs the tests may be busy: only the injected fault may spoil
    # a round
    document["validity"] = {
        "foreign_cpu_ratio": 10,
        "steal_ratio": 10,
        "psi_memory_some_ratio": 10,
        "swap_used_bytes": 1 << 60,
        "clock_jump_ms": 10**9,
        "client_lag_p99_ms": 10**6,
        "client_lag_share_ratio": 10**6,
        "ttft_disagreement_ratio": 10**6,
    }
    path.write_text(yaml.safe_dump(document))
    chat = root / "workloads" / "chat.yaml"
    document = yaml.safe_load(chat.read_text())
    document.update(
        requests=4, arrival={"kind": "all_at_once"}, output_tokens={"kind": "fixed", "tokens": 4}
    )
    document.update(request_timeout_s=60, stall_timeout_s=stall_s)
    chat.write_text(yaml.safe_dump(document))
    (root / "conftest.py").write_text(wear(str(Path(own_clock.__file__).parent)))
