"""``k3perf load``: find the rate a server sustains, import a log as a trace, make a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from k3perf.errors import ConfigFileError, UsageError

if TYPE_CHECKING:
    from k3perf.config.workload_spec import ServiceLevel, WorkloadSpec
    from k3perf.load.find_rate import FoundRate, RateTrial


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser("load", help="find a sustainable request rate; import or make traces")
    commands = parser.add_subparsers(dest="load_command", metavar="COMMAND", required=True)
    _register_find_rate(commands)
    importing = commands.add_parser("import-log", help="turn a log of OpenAI-style requests (JSONL with token counts) into a trace")
    importing.add_argument("log", type=Path)
    importing.add_argument("--output", type=Path, required=True, metavar="TRACE")
    importing.set_defaults(run=import_log)
    making = commands.add_parser("make-trace", help="make a small trace with the statistics of production chat traffic")
    making.add_argument("--requests", type=_count, default=200)
    making.add_argument("--duration", type=_positive, default=60.0, metavar="S")
    making.add_argument("--seed", type=int, default=0)
    making.add_argument("--output", type=Path, required=True, metavar="TRACE")
    making.set_defaults(run=make_trace)


def _register_find_rate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("find-rate", help="find the highest request rate at which a running server meets a service level")
    parser.add_argument("--base-url", required=True, help="for instance http://127.0.0.1:8000")
    parser.add_argument("--model-name", required=True, help="as the server names it")
    parser.add_argument("--workload", type=Path, required=True, help="a workload file; its arrival process is replaced")
    parser.add_argument("--vocabulary-size", type=_count, required=True, help="vocab_size of the model's config.json")
    parser.add_argument("--ttft-ms", type=_positive, help="bound on TTFT; default: the workload's service level")
    parser.add_argument("--tpot-ms", type=_positive, help="bound on TPOT; default: the workload's service level")
    parser.add_argument("--attainment", type=_share, default=0.95, help="share of requests that must meet the bounds (default: 0.95)")
    parser.add_argument("--duration", type=_positive, default=20.0, metavar="S", help="length of one run (default: 20)")
    parser.add_argument("--least-requests", type=_count, default=20, help="requests of one run at least (default: 20)")
    parser.add_argument("--lowest-rate", type=_positive, default=0.25, help="where the search begins, per second (default: 0.25)")
    parser.add_argument("--highest-rate", type=_positive, default=1024.0, help="where it ends, per second (default: 1024)")
    parser.add_argument("--precision", type=_positive, default=0.05, help="width of the final bracket (default: 0.05)")
    parser.add_argument("--output", type=Path, metavar="JSON", help="write the result and every trial there")
    parser.set_defaults(run=find_rate)


def find_rate(arguments: argparse.Namespace) -> int:
    """Search and print; the last line on stdout is the found rate."""
    from k3perf.load.find_rate import RateSearch, live_trial
    from k3perf.load.find_rate import find_rate as search_rate

    spec = _workload(arguments.workload)
    search = RateSearch(
        service_level=_service_level(arguments, spec),
        attainment_ratio=arguments.attainment,
        lowest_rate_per_s=arguments.lowest_rate,
        highest_rate_per_s=arguments.highest_rate,
        precision_ratio=arguments.precision,
    )
    run_trial = live_trial(
        spec,
        search,
        base_url=arguments.base_url,
        model_name=arguments.model_name,
        vocabulary_size=arguments.vocabulary_size,
        duration_s=arguments.duration,
        least_requests=arguments.least_requests,
    )

    def shown_trial(rate_per_s: float, trial_index: int) -> RateTrial:
        trial = run_trial(rate_per_s, trial_index)
        sys.stderr.write(
            f"{trial.rate_per_s:9.3f} requests/s: {trial.met_count} of {trial.request_count} met the level, "
            f"{'passed' if trial.passed else 'failed'}\n"
        )
        return trial

    found = search_rate(search, shown_trial)
    if arguments.output:
        _write(arguments.output, _as_json(found, spec))
    if found.failed_rate_per_s is None:
        sys.stderr.write(f"the search's ceiling of {arguments.highest_rate:g} requests/s passed; raise --highest-rate\n")
    sys.stdout.write(f"{found.rate_per_s:.4g}\n")
    return 0


def import_log(arguments: argparse.Namespace) -> int:
    """Write the trace; say on stderr what was left out. A log without one usable line is refused."""
    from k3perf.workload.log_import import import_log as read_log
    from k3perf.workload.trace import trace_text

    try:
        lines = arguments.log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{arguments.log}: the log cannot be read ({error}); give a JSONL file in UTF-8") from None
    imported = read_log(lines)
    left_out = ", ".join(f"{count} lines {reason}" for reason, count in imported.left_out.items())
    if not imported.rows:
        raise UsageError(f"{arguments.log}: no line has a time and both token counts ({left_out or 'the file is empty'})")
    _write(arguments.output, trace_text(imported.rows))
    sys.stderr.write(f"{len(imported.rows)} requests imported; left out: {left_out or 'none'}\n")
    return 0


def make_trace(arguments: argparse.Namespace) -> int:
    """Write a synthetic trace."""
    from k3perf.workload.trace import trace_text, unbounded_hit_ratio
    from k3perf.workload.trace_synthesis import synthesise_trace

    rows = synthesise_trace(requests=arguments.requests, duration_s=arguments.duration, seed=arguments.seed)
    _write(arguments.output, trace_text(rows))
    sys.stderr.write(f"{len(rows)} requests; prefix hit ratio with an unbounded cache {unbounded_hit_ratio(rows):.3f}\n")
    return 0


def _workload(path: Path) -> WorkloadSpec:
    import yaml
    from pydantic import ValidationError

    from k3perf.config.workload_spec import TraceReplay, WorkloadSpec

    try:
        spec = WorkloadSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigFileError(path, "", None, f"the workload cannot be read ({error})", "Give a file of perf_tests/workloads.") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigFileError(path, key, first["input"], first["msg"], "Correct the workload file.") from None
    if isinstance(spec.arrival, TraceReplay):
        raise ConfigFileError(path, "arrival", "trace", "a trace has a rate of its own", "Give a workload with lengths instead.")
    return spec


def _service_level(arguments: argparse.Namespace, spec: WorkloadSpec) -> ServiceLevel:
    from k3perf.config.workload_spec import ServiceLevel

    declared = spec.service_level
    ttft_ms = arguments.ttft_ms or (declared.ttft_ms if declared else None)
    tpot_ms = arguments.tpot_ms or (declared.tpot_ms if declared else None)
    if ttft_ms is None or tpot_ms is None:
        raise UsageError(f"workload {spec.name} declares no service_level; give --ttft-ms and --tpot-ms")
    return ServiceLevel(ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def _as_json(found: FoundRate, spec: WorkloadSpec) -> str:
    import json
    from dataclasses import asdict

    return json.dumps({"schema_version": 1, "workload": spec.name} | asdict(found), indent=1) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another --output") from None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 1 or more")
    return value
