"""``k3perf load find-rate``: find and store the highest rate that meets a service
level, on a target's engine or a running server.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from k3perf.cli.output import login_name, write_text
from k3perf.cli.shared_options import (
    add_baselines_option,
    add_engine_python_option,
    add_suite_option,
    baselines_of,
    client_processes,
    count,
    positive,
    share,
    suite_of,
)
from k3perf.errors import ConfigFileError, UsageError
from k3perf.run.progress import Progress

if TYPE_CHECKING:
    from k3perf.config.models import TargetSpec
    from k3perf.config.suite import Suite
    from k3perf.config.workload_spec import ServiceLevel, WorkloadSpec
    from k3perf.load.find_rate import FoundRate, RateSearch, RateTrial
    from k3perf.run.settings import RunSettings


@dataclass(frozen=True, slots=True)
class _Server:
    """What the trials are sent to, and what is known of it."""

    base_url: str
    model_name: str
    vllm_version: str
    config: str | None


_NUMBERS: Final[tuple[tuple[str, Callable[[str], float], float | None, str], ...]] = (
    ("--vocabulary-size", count, None, "vocab_size of config.json (default: the target's)"),
    ("--ttft-ms", positive, None, "bound on TTFT (default: the workload's service level)"),
    ("--tpot-ms", positive, None, "bound on TPOT (default: the workload's service level)"),
    ("--attainment", share, 0.95, "share of requests that must meet the bounds (default: 0.95)"),
    ("--duration", positive, 20.0, "seconds of one run (default: 20)"),
    ("--least-requests", count, 20, "fewest requests of one run (default: 20)"),
    ("--lowest-rate", positive, 0.25, "first rate to try, per second (default: 0.25)"),
    ("--highest-rate", positive, 1024.0, "highest rate to try, per second (default: 1024)"),
    ("--precision", positive, 0.05, "width of the final bracket (default: 0.05)"),
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of ``k3perf load``."""
    parser = commands.add_parser(
        "find-rate",
        help="find the highest request rate at which a target or a running server keeps its bounds",
        epilog="exit status: 10 when no server answers, or no rate meets the bounds",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="declared target: its reference engine is started, the rate is stored",
    )
    parser.add_argument(
        "--workload",
        required=True,
        help="name of a declared workload, or a workload file; its arrival process is replaced",
    )
    parser.add_argument("--base-url", help="running server, for example http://127.0.0.1:8000")
    parser.add_argument("--model-name", help="name of the model at that server")
    for option, kind, default, text in _NUMBERS:
        parser.add_argument(option, type=kind, default=default, help=text)
    parser.add_argument(
        "--output", type=Path, metavar="JSON", help="file for the result and every trial"
    )
    parser.add_argument(
        "--by", default="", help="name to store with the rate (default: the login name)"
    )
    parser.add_argument(
        "--client-processes",
        type=client_processes,
        default="auto",
        help="client processes, or auto (default: auto)",
    )
    add_baselines_option(parser)
    add_engine_python_option(parser)
    add_suite_option(parser)
    parser.set_defaults(run=find_rate)


def find_rate(arguments: argparse.Namespace) -> int:
    """Search, store and print. The last line on stdout is the rate."""
    from k3perf.load.find_rate import RateSearch
    from k3perf.load.find_rate import find_rate as search_rate
    from k3perf.load.wire import Endpoint

    if arguments.base_url is not None:
        Endpoint.parse(arguments.base_url)
    suite = suite_of(arguments) if arguments.target else None
    target = suite.target(arguments.target) if suite is not None else None
    spec = _workload(arguments.workload, suite)
    _check_stored(arguments, target)
    search = RateSearch(
        service_level=_service_level(arguments, spec),
        attainment_ratio=arguments.attainment,
        lowest_rate_per_s=arguments.lowest_rate,
        highest_rate_per_s=arguments.highest_rate,
        precision_ratio=arguments.precision,
    )
    vocabulary_size = arguments.vocabulary_size or (
        suite.vocabulary_size(target) if suite is not None and target is not None else None
    )
    if vocabulary_size is None:
        raise UsageError("--vocabulary-size is required without --target")
    with _server(arguments, suite, target) as server:
        found = search_rate(search, _trials(arguments, spec, search, server, vocabulary_size))
    if arguments.output:
        write_text(arguments.output, _as_json(found, spec))
    if found.failed_rate_per_s is None:
        sys.stderr.write(
            f"even {arguments.highest_rate:g} requests/s met the service level; raise"
            " --highest-rate\n"
        )
    if target is not None:
        _store(arguments, target, spec, search, found, server)
    sys.stdout.write(f"{found.rate_per_s:.4g}\n")
    return 0


def _check_stored(arguments: argparse.Namespace, target: TargetSpec | None) -> None:
    """Check before the search that the result can be stored."""
    from k3perf.store.found_rates import read_found_rates

    if target is not None:
        read_found_rates(baselines_of(arguments), target.name)
    if arguments.output is not None and not arguments.output.absolute().parent.is_dir():
        raise UsageError(f"--output {arguments.output}: directory not found")


def _trials(
    arguments: argparse.Namespace,
    spec: WorkloadSpec,
    search: RateSearch,
    server: _Server,
    vocabulary_size: int,
) -> Callable[[float, int], RateTrial]:
    from k3perf.load.find_rate import live_trial, warm_up

    sys.stderr.write("warming up\n")
    warm_up(
        spec,
        base_url=server.base_url,
        model_name=server.model_name,
        vocabulary_size=vocabulary_size,
    )
    run_trial = live_trial(
        spec,
        search,
        base_url=server.base_url,
        model_name=server.model_name,
        vocabulary_size=vocabulary_size,
        duration_s=arguments.duration,
        least_requests=arguments.least_requests,
        client_processes=arguments.client_processes,
    )

    def shown_trial(rate_per_s: float, trial_index: int) -> RateTrial:
        sys.stderr.write(
            f"{rate_per_s:9.3f} requests/s: sending for about"
            f" {_trial_s(arguments, rate_per_s):.0f} s\n"
        )
        trial = run_trial(rate_per_s, trial_index)
        sys.stderr.write(
            f"{trial.rate_per_s:9.3f} requests/s: {trial.met_count} of {trial.request_count} met"
            f" the level, {'passed' if trial.passed else 'failed'}\n"
        )
        return trial

    return shown_trial


def _trial_s(arguments: argparse.Namespace, rate_per_s: float) -> float:
    """The duration, or longer where too few requests would arrive in it."""
    return max(float(arguments.duration), float(arguments.least_requests) / rate_per_s)


@contextlib.contextmanager
def _server(
    arguments: argparse.Namespace, suite: Suite | None, target: TargetSpec | None
) -> Iterator[_Server]:
    """The named running server, or the target's reference engine during the search."""
    if arguments.base_url:
        if not arguments.model_name:
            raise UsageError("--base-url needs --model-name, as the server names its model")
        yield _Server(arguments.base_url, arguments.model_name, "unknown", None)
        return
    if suite is None or target is None:
        raise UsageError(
            "name a declared --target, or a running server with --base-url and --model-name"
        )
    from k3perf.engine.signals import install
    from k3perf.run.reference_engine import reference_engine
    from k3perf.telemetry.hardware import detect_hardware

    lack = detect_hardware().lacks(target.hardware)
    if lack:
        raise UsageError(
            f"--target {target.name}: {lack}. Run it on such a machine, or name a running server"
            " with --base-url."
        )
    restore_signals = install()
    try:
        with reference_engine(_settings(arguments, suite), target.name, _StageLines()) as live:
            yield _Server(
                live.engine.base_url,
                live.engine.model_name,
                live.identity.vllm_version,
                target.reference,
            )
    finally:
        restore_signals()


def _settings(arguments: argparse.Namespace, suite: Suite) -> RunSettings:
    from k3perf.run.engine_environment import (
        cache_directory,
        engine_python_path,
        find_engine_python,
    )
    from k3perf.run.settings import RunSettings

    state_directory = Path(".k3perf").absolute()
    cache = cache_directory(state_directory)
    run_id = f"find-rate-{uuid.uuid4().hex[:8]}"
    return RunSettings(
        suite=suite,
        run_id=run_id,
        commit="unknown",
        baselines_directory=baselines_of(arguments).absolute(),
        results_directory=state_directory / "results" / run_id,
        cache_directory=cache,
        engine_python=find_engine_python(arguments.engine_python, Path.cwd()),
        engine_python_path=engine_python_path(cache),
    )


class _StageLines(Progress):
    """An engine's stages as lines on stderr. No rounds are measured here."""

    def stage(self, engine: str, stage: str) -> None:
        """One line."""
        sys.stderr.write(f"{engine}: {stage}\n")

    def note(self, text: str) -> None:
        """One line."""
        sys.stderr.write(f"{text}\n")


def _store(
    arguments: argparse.Namespace,
    target: TargetSpec,
    spec: WorkloadSpec,
    search: RateSearch,
    found: FoundRate,
    server: _Server,
) -> None:
    from k3perf.run.live import utc_now
    from k3perf.store.found_rates import StoredRate, store_found_rate
    from k3perf.workload.request_plan import work_digest

    rate = StoredRate(
        workload=spec.name,
        rate_per_s=float(f"{found.rate_per_s:.4g}"),
        failed_rate_per_s=(
            None if found.failed_rate_per_s is None else float(f"{found.failed_rate_per_s:.4g}")
        ),
        service_level=search.service_level,
        attainment_ratio=search.attainment_ratio,
        work_digest=work_digest(spec),
        hardware_class=target.hardware.hardware_class,
        config=server.config,
        vllm_version=server.vllm_version,
        trial_count=len(found.trials),
        trial_duration_s=arguments.duration,
        found_at_utc=utc_now(),
        found_by=arguments.by or login_name(),
    )
    path = store_found_rate(baselines_of(arguments), target.name, rate)
    sys.stderr.write(f"stored in {path}; review and commit it\n")


def _workload(given: str, suite: Suite | None) -> WorkloadSpec:
    from k3perf.config.load_yaml import load_document
    from k3perf.config.workload_spec import TraceReplay, WorkloadSpec

    path = Path(given)
    if suite is not None and given in suite.workloads:
        spec, path = suite.workloads[given], suite.root / "workloads" / f"{given}.yaml"
    elif suite is not None and path.suffix not in (".yaml", ".yml"):
        spec = suite.workload(given)  # raises with the declared names
    else:
        spec = load_document(WorkloadSpec, path)
    if isinstance(spec.arrival, TraceReplay):
        raise ConfigFileError(
            path,
            "arrival",
            "trace",
            "a trace has its own rate",
            "Give a workload with lengths instead.",
        )
    return spec


def _service_level(arguments: argparse.Namespace, spec: WorkloadSpec) -> ServiceLevel:
    from k3perf.config.workload_spec import ServiceLevel

    declared = spec.service_level
    ttft_ms = arguments.ttft_ms or (declared.ttft_ms if declared else None)
    tpot_ms = arguments.tpot_ms or (declared.tpot_ms if declared else None)
    if ttft_ms is None or tpot_ms is None:
        raise UsageError(
            f"workload {spec.name} declares no service_level; give --ttft-ms and --tpot-ms"
        )
    level = ServiceLevel(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    if arguments.target and declared is not None and level != declared:
        raise UsageError(
            f"a target's rate is found under the workload's own service level ({declared.ttft_ms:g}"
            f" ms, {declared.tpot_ms:g} ms); leave --ttft-ms and --tpot-ms out, or change the"
            " workload"
        )
    return level


def _as_json(found: FoundRate, spec: WorkloadSpec) -> str:
    import json
    from dataclasses import asdict

    return json.dumps({"schema_version": 1, "workload": spec.name} | asdict(found), indent=1) + "\n"
