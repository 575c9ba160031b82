"""Attribution on real CPU engines: each injected cause is named first in at least nine of
ten runs.

A run compares three rounds of a faulty engine with three rounds of a clean one. Both
engines are up, and their runs alternate, as in `reference` mode: the machine's own
speed changes by 8 % within minutes.
``K3PERF_ATTRIBUTION_RUNS`` sets how many runs each cause gets (default 10), and
``K3PERF_ATTRIBUTION_RESULTS`` a file that each run's causes are appended to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3perf.config.suite import load_suite
from k3perf.engine.jit_monitor import can_be_verbose
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import measured_launch
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.load.generator import run_round
from k3perf.metrics.arm_parts import arm_parts
from k3perf.metrics.compute import session_metrics
from k3perf.metrics.drift import config_differences
from k3perf.records.attribution import Cause
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm, EngineIdentity, RoundKind, RoundRecord, SessionRecord
from k3perf.records.verdict import MetricVerdict
from k3perf.report.attribution import attribute
from k3perf.run.engine_environment import engine_python_path
from k3perf.telemetry.counters import counter_difference
from k3perf.telemetry.server import ServerProbe
from k3perf.workload.request_plan import expand

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RUNS = int(os.environ.get("K3PERF_ATTRIBUTION_RUNS", "10"))
ROUNDS_A_RUN = 3
FAULTY = Path(__file__).parent / "faulty_engine"
CONTEXT_TOKENS = 640
FAULTS: dict[Cause, dict[str, Any]] = {
    Cause.SLOW_PREFILL: {"phase": ("prefill", 40)},
    Cause.SLOW_DECODE: {"phase": ("decode", 20)},
    Cause.SMALLER_CACHE: {"arguments": {"blocks": 1280}},
    Cause.PREFIX_CACHE: {"arguments": {"enable_prefix_caching": False}},
    Cause.BATCH_LIMIT: {"arguments": {"max_num_seqs": 2}},
    Cause.FRONT_END: {"arguments": {"middleware": "k3perf_faulty.slow_front_end"}},
}


class Bench:
    """Starts engines of ``cpu-gqa`` and measures rounds of a workload with prefixes."""

    def __init__(self, root: Path, engine_python: Path, work: Path) -> None:
        self.suite = load_suite(root)
        self.target = self.suite.target("cpu-gqa")
        self.engine_python = engine_python
        self.work = work
        self.started_count = 0
        self.plan = expand(
            self.suite.workload("prefix"), vocabulary_size=self.suite.vocabulary_size(self.target)
        )

    @contextmanager
    def engine(self, arguments: dict[str, Any]) -> Iterator[tuple[Engine, ServerProbe]]:
        changed = {"max_model_len": CONTEXT_TOKENS, **arguments}
        middleware = changed.pop("middleware", "")
        tokens = changed.pop("blocks", None)
        if tokens:
            block = int(changed.setdefault("block_size", 32))
            changed["num_gpu_blocks_override"] = tokens // block
        changed.setdefault("block_size", 32)
        base = self.suite.engine_arguments(self.target, self.suite.config("default"))
        assert self.target.model.directory is not None
        launch = measured_launch(
            self.target,
            {**base, **changed},
            model=str(
                materialise(self.suite.root / self.target.model.directory, self.work / "models")
            ),
            engine_python=self.engine_python,
            python_path=f"{engine_python_path(self.work)}{os.pathsep}{FAULTY}",
            cache_directory=self.work,
            verbose_monitor=can_be_verbose(self.engine_python),
        )
        place = launch.argv.index("--worker-extension-cls") + 1
        argv = (*launch.argv[:place], "k3perf_faulty.FaultyExtension", *launch.argv[place + 1 :])
        argv += ("--middleware", str(middleware)) if middleware else ()
        self.started_count += 1
        engine = start_engine(
            replace(launch, argv=argv), work_directory=self.work / f"engine-{self.started_count}"
        )
        try:
            yield engine, ServerProbe(engine.base_url, timeout_s=60)
        finally:
            engine.stop()

    def session(self, engine: Engine, probe: ServerProbe, name: str, run: int) -> SessionRecord:
        """One run's rounds, after two for warming up in a cause's first run. No two runs
        send the same prompts, which the prefix cache would hold.
        """
        first = run * ROUNDS_A_RUN
        for index in (-first - 1, -first - 2) if run % RUNS == 0 else ():
            self._round(engine, probe, index)
        rounds = [self._round(engine, probe, first + index) for index in range(ROUNDS_A_RUN)]
        return SessionRecord(
            session_id=name,
            target="cpu-gqa",
            config=name,
            workload="prefix",
            plan_digest=self.plan.digest,
            arm=Arm.CANDIDATE,
            started_at_utc="",
            identity=EngineIdentity("", "", "", "", (), None, ""),
            resolved_config=probe.resolved_config(),
            stages=(),
            memory=probe.rank_memory(),
            rounds=tuple(rounds),
            kv_capacity_tokens=probe.kv_capacity_tokens,
        )

    def _round(self, engine: Engine, probe: ServerProbe, index: int) -> RoundRecord:
        before = probe.counters()
        seen = run_round(
            self.plan.for_round(index), base_url=engine.base_url, model_name=engine.model_name
        )
        tokens = sum(sample.output_token_count for sample in seen.samples)
        after = probe.counters_after(before, "vllm:generation_tokens_total", tokens)
        return RoundRecord(
            index,
            RoundKind.MEASURED,
            seen.start_ns,
            seen.end_ns,
            seen.samples,
            counters=counter_difference(before, after).values,
        )


@pytest.fixture(scope="module")
def bench(pytestconfig: pytest.Config, engine_python: Path, tmp_path_factory: Any) -> Bench:
    root = Path(pytestconfig.rootpath) / "perf_tests"
    return Bench(root, engine_python, tmp_path_factory.mktemp("attribution"))


@pytest.fixture(scope="module")
def clean(bench: Bench) -> Iterator[tuple[Engine, ServerProbe]]:
    with bench.engine({}) as running:
        yield running


@pytest.mark.parametrize("cause", list(FAULTS))
def test_the_injected_cause_is_named_first(
    bench: Bench, clean: tuple[Engine, ServerProbe], cause: Cause
) -> None:
    fault, first = FAULTS[cause], list(FAULTS).index(cause) * RUNS
    with bench.engine(fault.get("arguments", {})) as faulty:
        if "phase" in fault:
            faulty[1].call("k3perf_slow_phase", *fault["phase"])
        pairs = [
            (bench.session(*clean, "clean", run), bench.session(*faulty, str(cause), run))
            for run in range(first, first + RUNS)
        ]
    named = []
    for was, now in pairs:
        found = attribute(
            arm_parts([session_metrics(was)]),
            arm_parts([session_metrics(now)]),
            lost=[MetricVerdict("ttft_mean_ms", "ms", Outcome.REGRESSED)],
            differences=config_differences(was.resolved_config, now.resolved_config),
        )
        named.append([(str(one.cause), one.share_ratio) for one in found.causes])
        _keep(cause, was, now, named[-1])
    right = sum(bool(one) and one[0][0] == cause for one in named)
    assert right >= 0.9 * RUNS, named


def _keep(cause: Cause, was: SessionRecord, now: SessionRecord, named: list[Any]) -> None:
    results = os.environ.get("K3PERF_ATTRIBUTION_RESULTS")
    if not results:
        return
    parts = {
        arm: {name: part.value for name, part in arm_parts([session_metrics(record)]).items()}
        for arm, record in (("was", was), ("now", now))
    }
    with Path(results).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"injected": cause, "named": named, **parts}) + "\n")
