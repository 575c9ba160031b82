"""``k3perf tune accept``: a point of a tuning run as an approved config, listed by its
target, with the measurements for its baseline proposal.

The changed suite is loaded in a scratch copy first, so that a config that the suite
refuses leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from k3perf.cli.shared_options import load_checked, suite_of
from k3perf.config.models import ConfigSpec
from k3perf.documents import yaml_of
from k3perf.errors import ConfigFileError, ExitStatus, UsageError, shortened
from k3perf.records.tuning import Change, Effect, TuningReading, TuningResult, label_of

if TYPE_CHECKING:
    from k3perf.config.suite import Suite

_HEAD: Final = "# yaml-language-server: $schema=../../docs/schemas/config.json\n"


def accept_point(arguments: argparse.Namespace) -> int:
    """Write config, target and measurements, then propose the baseline."""
    from k3perf.run.tuning_run import proposed_change
    from k3perf.store.atomic import replace_file
    from k3perf.store.tuning_journal import read_readings, read_result

    suite = suite_of(arguments)
    result = read_result(arguments.results)
    readings = read_readings(arguments.results)
    change = proposed_change(result, arguments.point)
    if change is None:
        raise UsageError(_unknown_point(result, arguments.point))
    _require_reason(result, change, arguments)
    texts = config_texts(suite, result, change, arguments.name, arguments.reason)
    name = list(texts)[-1]
    target_path = _file_of(suite, "targets", result.target)
    target_text = with_listed(
        target_path, target_path.read_text(encoding="utf-8"), "configs", list(texts)
    )
    spec = suite.target(result.target)
    if result.workload not in (*spec.workloads, *spec.workloads_on_request):
        target_text = with_listed(
            target_path, target_text, "workloads_on_request", [result.workload]
        )
    written = {suite.root / "configs" / f"{one}.yaml": text for one, text in texts.items() if text}
    if target_text != target_path.read_text(encoding="utf-8"):
        written[target_path] = target_text
    _check(suite, written)
    for path, text in written.items():
        replace_file(path, text)
        sys.stdout.write(f"wrote {path}\n")
    return _propose(arguments, suite, result, readings, change, name)


def config_texts(
    suite: Suite, result: TuningResult, change: Change, name: str, reason: str
) -> dict[str, str]:
    """The files to write by config name, the point's own last. An empty text: the
    config exists already. Raises UsageError for a name that is taken or not a name.
    """
    parts: dict[str, str] = {}
    for argument in sorted(change):
        single = {argument: change[argument]}
        last = len(change) == 1
        own = existing_single(suite, result.config, single) or (
            name if last and name else config_name(single)
        )
        parts[own] = (
            ""
            if own in suite.configs and _same_single(suite, own, result.config, single)
            else _config_text(own, result, single, _why(result, single, reason))
        )
    if len(change) > 1:
        whole = name or "_".join(sorted(config_name({key: change[key]}) for key in change))[:48]
        parts[whole.rstrip("_")] = _config_text(
            whole.rstrip("_"), result, None, _why(result, change, reason), tuple(parts)
        )
    for own, text in parts.items():
        if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", own) or len(own) > 48:
            raise UsageError(
                f"--name {shortened(repr(own))}: a config's name has small letters, digits and"
                " single underscores, 48 at most"
            )
        if text and own in suite.configs:
            raise UsageError(f"config {own} exists and is another change. Choose another --name.")
    return parts


def config_name(single: Change) -> str:
    """``max_num_seqs_64``."""
    ((argument, value),) = single.items()
    text = f"{argument}_{value if isinstance(value, str | int | float) else 'set'}".lower()
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")[:48].rstrip("_")


def existing_single(suite: Suite, base: str, single: Change) -> str:
    """The declared config that is this very change of the base. Empty without one."""
    return next((name for name in suite.configs if _same_single(suite, name, base, single)), "")


def with_listed(path: Path, text: str, key: str, names: list[str]) -> str:
    """A target's YAML text with ``names`` in its list. Comments stay. Raises UsageError
    if the list is written in another way than as ``key: [...]`` or line by line.
    """
    listed = yaml_of(text).get(key)
    if listed is None:
        if key == "configs":
            return text  # without a list the target takes every config
        return re.sub(r"(?m)^(workloads: .*)$", rf"\1\n{key}: [{', '.join(names)}]", text, count=1)
    missing = [name for name in names if name not in listed]
    if not missing:
        return text
    inline, block = (
        rf"(?ms)^({key}: \[[^\]]*?)\s*\]",
        rf"(?m)^({key}:\n(?:[ ]*- .*\n)*([ ]*)- .*\n)",
    )
    if re.search(inline, text):
        changed = re.sub(
            inline,
            lambda found: f"{found[1]}{', ' if listed else ''}{', '.join(missing)}]",
            text,
            count=1,
        )
    else:
        changed = re.sub(
            block,
            lambda found: found[1] + "".join(f"{found[2]}- {name}\n" for name in missing),
            text,
            count=1,
        )
    if yaml_of(changed) != {**yaml_of(text), key: [*listed, *missing]}:
        raise UsageError(
            f"{path}: cannot add {', '.join(missing)} to {key!r}, which is written in an"
            f" unusual way. Add it by hand and run the command again."
        )
    return changed


def _same_single(suite: Suite, name: str, base: str, single: Change) -> bool:
    spec: ConfigSpec = suite.configs[name]
    return spec.extends == base and spec.change == single and not spec.combines


def _config_text(
    name: str, result: TuningResult, single: Change | None, why: str, parts: tuple[str, ...] = ()
) -> str:
    what = (
        f"change: {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in single.items())}}}"
        if single is not None
        else f"combines: [{', '.join(parts)}]"
    )
    source = f"k3perf tune {result.run_id} on {result.target}, workload {result.workload}"
    day = _day(result)
    note = (
        f"{result.session_count} sessions, vLLM {result.fingerprint.get('vllm', 'unknown')},"
        f" commit {result.fingerprint.get('commit', 'unknown')[:12]}"
    )
    return (
        f"{_HEAD}schema_version: 1\nname: {name}\nextends: {result.config}\n{what}\n"
        f"why: {json.dumps(why, ensure_ascii=False)}\nprovenance:\n  kind: experiment\n"
        f"  source: {json.dumps(source)}\n  date: {day}\n  note: {json.dumps(note)}\n"
    )


def _day(result: TuningResult) -> str:
    found = re.search(r"(\d{4})(\d{2})(\d{2})", result.run_id)
    if found is None:
        from datetime import UTC, datetime

        return datetime.now(UTC).strftime("%Y-%m-%d")
    return "-".join(found.groups())


def _why(result: TuningResult, change: Change, reason: str) -> str:
    """The reason with the run's numbers."""
    gain = _gain(result, change)
    numbers = f"{result.objective} {gain} on {result.workload}"
    return f"{reason.rstrip('.')}: {numbers}" if reason else numbers


def _gain(result: TuningResult, change: Change) -> str:
    from k3perf.report.tuning_text import effect_text

    if change == result.proposal:
        return f"{effect_text(result.gain)} on fresh sessions"
    interaction = result.interaction
    if interaction is not None and change in interaction.parts:
        gain = interaction.single_gains[interaction.parts.index(change)]
        return f"{effect_text(gain)} on fresh sessions"
    effect: Effect | None = next(
        (
            value.effects.get(result.objective)
            for one in result.parameters
            for value in one.values
            if value.change == change
        ),
        None,
    )
    return f"{effect_text(effect)} in the sweep"


def _require_reason(result: TuningResult, change: Change, arguments: argparse.Namespace) -> None:
    if change != result.proposal and len(arguments.reason) < 8:
        raise UsageError(
            f"the run does not propose {label_of(change)}: {_decision(result, change)}. Give"
            " --reason with a sentence for the reviewer, or accept best."
        )


def _decision(result: TuningResult, change: Change) -> str:
    for one in result.parameters:
        for value in one.values:
            if value.change == change and change:
                return f"{one.parameter} {one.decision}"
    return "it was not confirmed"


def _unknown_point(result: TuningResult, point: str) -> str:
    known = {
        label_of(value.change)
        for one in result.parameters
        for value in one.values
        if value.session_count and value.change
    }
    if point == "best":
        reasons = "; ".join(result.reasons) or "nothing was measured"
        return f"the run proposes no point: {reasons}. Name a measured one: {', '.join(known)}."
    names = ", ".join(sorted(known))
    return f"point {shortened(repr(point))} was not measured. Use one of: best, {names}."


def _file_of(suite: Suite, folder: str, name: str) -> Path:
    for path in sorted((suite.root / folder).glob("*.y*ml")):
        if yaml_of(path.read_text(encoding="utf-8")).get("name") == name:
            return path
    raise UsageError(f"target {name} is not declared in {suite.root / folder}")


def _check(suite: Suite, written: dict[Path, str]) -> None:
    """Load the suite as it will be. Raises ConfigFileError."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / suite.root.name
        root.mkdir()
        for entry in suite.root.iterdir():
            place = root / entry.name
            if entry.name not in ("configs", "targets"):
                place.symlink_to(entry)
                continue
            place.mkdir()
            for file in entry.iterdir():
                (place / file.name).symlink_to(file)
        for path, text in written.items():
            place = root / path.relative_to(suite.root)
            place.unlink(missing_ok=True)
            place.write_text(text, encoding="utf-8")
        try:
            load_checked(root)
        except ConfigFileError as error:
            raise UsageError(
                f"nothing was written, since the suite would not load:\n{error}".replace(
                    str(root), str(suite.root)
                )
            ) from error


def _propose(
    arguments: argparse.Namespace,
    suite: Suite,
    result: TuningResult,
    readings: tuple[TuningReading, ...],
    change: Change,
    name: str,
) -> int:
    """The measurements as a file, and ``baseline propose`` of it."""
    from k3perf.cli.baseline_command import run_propose
    from k3perf.store.measurements import write_measurement_file

    file = measurement_of(suite, result, readings, change, name)
    if not file.cells[0].sessions:
        sys.stdout.write("no sessions for a baseline proposal\n")
        return ExitStatus.OK
    path = arguments.results / f"{name}-measurements.json"
    write_measurement_file(path, file)
    sys.stdout.write(f"wrote {path}\n")
    proposing = argparse.Namespace(
        results=[str(path)],
        new_anchor=False,
        across_commits=False,
        only=[],
        only_testable=False,
        proposals=arguments.proposals,
        baselines=arguments.baselines,
        suite=arguments.suite,
    )
    try:
        status = run_propose(proposing)
    except UsageError as error:
        sys.stdout.write(f"no baseline proposal: {error}\n")
        status = ExitStatus.USAGE
    if status != ExitStatus.OK:
        sys.stdout.write(
            f"The config is written. Record its baseline: pytest perf_tests -k {name} --k3-target"
            f" {result.target} --k3-record\n"
        )
    return ExitStatus.OK


def measurement_of(
    suite: Suite,
    result: TuningResult,
    readings: tuple[TuningReading, ...],
    change: Change,
    name: str,
) -> Any:
    """The point's sessions in the target's own mode. In ``reference`` mode only those
    next to a session of the reference config count.
    """
    from k3perf.records.measurement import MeasurementFile
    from k3perf.records.samples import Arm
    from k3perf.run.live import utc_now
    from k3perf.run.tuning_sessions import paired_measurement

    target = suite.target(result.target)
    mine = [one for one in readings if not one.trial.workload]
    paired = paired_measurement(
        mine,
        change,
        {},
        names=(result.target, name, result.workload),
        hardware_class=result.fingerprint.get("hardware_class", target.hardware.hardware_class),
        plan_digest=result.fingerprint.get("plan", ""),
    )
    mode = target.measurement.mode
    if mode == "reference":
        sessions = paired.sessions if result.config == target.reference else ()
    else:
        sessions = tuple(
            replace(one.session, arm=Arm.CANDIDATE, pair_id=None)
            for one in mine
            if one.session is not None and one.trial.label == label_of(change)
        )
    identity = next(
        (
            {
                "vllm": str(one.session.resolved_config.get("version.vllm", "absent")),
                "torch": str(one.session.resolved_config.get("version.torch", "absent")),
                "host": one.session.host,
            }
            for one in mine
            if one.session is not None
        ),
        {},
    )
    return MeasurementFile(
        run_id=result.run_id,
        commit=result.fingerprint.get("commit", "unknown"),
        created_at_utc=utc_now(),
        identity=identity,
        cells=(replace(paired, mode=mode, sessions=sessions),),
    )
