"""A killed or interrupted recording to a measurement file: every session that had
enough valid rounds, from the append-only results.
"""

from __future__ import annotations

from pathlib import Path

from k3perf.ci.commits import UNKNOWN, same_commit
from k3perf.config.suite import Suite
from k3perf.errors import ConfigFileError, UsageError
from k3perf.metrics.compute import session_metrics
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.samples import Arm, EngineIdentity, RoundKind, SessionRecord
from k3perf.store.measurements import write_measurement_file
from k3perf.store.results import RunResults, read_results

CellName = tuple[str, str, str, str]
_GIVE_RESULTS = "Give results.jsonl of the interrupted run, or the run's directory."


def recover(
    results_path: Path, output_path: Path, suite: Suite, *, commit: str
) -> tuple[CellMeasurement, ...]:
    """Write ``output_path`` from the sessions in ``results_path``. Raises UsageError
    when none of them is usable.

    A session is usable when it ended (its peaks were read then), with at least its
    target's ``minimum_rounds`` valid measured rounds; a candidate of a comparison also
    needs its reference. Sessions with an injected fault never enter. Of ``commit`` and
    the one that the run recorded the file gets the longer.
    """
    results = read_results(results_path)
    if not results.run_id:
        raise ConfigFileError(
            results_path,
            "",
            None,
            "is not a results file: it contains no complete line",
            _GIVE_RESULTS,
        )
    measured = _measured_commit(results, commit)
    ended = [record for name, record in results.sessions.items() if name in results.ended_sessions]
    usable = [record for record in ended if _usable(record, suite)]
    cells: dict[CellName, list[SessionRecord]] = {}
    for record in usable:
        if record.arm is Arm.CANDIDATE or record.pair_id is not None:
            cells.setdefault(
                (record.target, record.config, record.workload, record.plan_digest), []
            ).append(record)
    measurements = tuple(
        _measurement(name, records, usable, suite)
        for name, records in cells.items()
        if any(record.arm is Arm.CANDIDATE for record in records)
    )
    if not measurements:
        raise UsageError(
            f"{results_path} contains no session with enough valid rounds. Record again with"
            " --k3-record."
        )
    identity = usable[0].identity
    write_measurement_file(
        output_path,
        MeasurementFile(
            run_id=results.run_id,
            commit=measured,
            created_at_utc=max(
                record.started_at_utc for record in usable
            ),  # when it was measured: histories are put in order by it
            identity=versions(identity),
            cells=measurements,
        ),
    )
    return measurements


def _measured_commit(results: RunResults, commit: str) -> str:
    """The commit of a recording: ``commit``, or the longer hash that the run recorded
    of it. UsageError for a run of another one, and for a comparison of two
    engines.
    """
    measured, base = (
        results.experiment.get("commit") or UNKNOWN,
        results.experiment.get("ab_base", ""),
    )
    if not commit:
        raise UsageError(
            f"--commit is empty: {results.path} was measured at {measured}. Give the commit that"
            " was measured."
        )
    if measured != UNKNOWN and not same_commit(measured, commit):
        raise UsageError(
            f"--commit {commit}: {results.path} was measured at {measured}. Give that, or at least"
            " seven digits of its hash (with -dirty if it has that), or record again."
        )
    if base:
        raise UsageError(
            f"{results.path} compares with {base} (ab), which cannot make a baseline. Record with"
            " --k3-record instead."
        )
    return commit if measured == UNKNOWN else max(commit, measured, key=len)


def versions(identity: EngineIdentity) -> dict[str, str]:
    """What a measurement file says about the engine and the machine."""
    return {
        "vllm": identity.vllm_version,
        "torch": identity.torch_version,
        "python": identity.python_version,
        "driver": identity.driver_version or "absent",
        "devices": ", ".join(identity.device_names),
        "host": identity.host,
    }


def _usable(record: SessionRecord, suite: Suite) -> bool:
    needed_count = suite.target(record.target).measurement.minimum_rounds
    valid_count = sum(
        1 for entry in record.rounds if entry.kind is RoundKind.MEASURED and entry.valid
    )
    return (
        record.valid and not record.injected and valid_count >= needed_count and bool(record.memory)
    )


def _measurement(
    name: CellName, records: list[SessionRecord], usable: list[SessionRecord], suite: Suite
) -> CellMeasurement:
    target, config, workload, plan_digest = name
    candidates = [record for record in records if record.arm is Arm.CANDIDATE]
    pairs = {record.pair_id for record in candidates if record.pair_id is not None}
    references = [
        record for record in usable if record.arm is Arm.REFERENCE and record.pair_id in pairs
    ]
    service_level = suite.workload(workload).service_level
    sessions = [
        session_metrics(record, service_level=service_level)
        for record in (*references, *candidates)
    ]
    return CellMeasurement(
        target=target,
        config=config,
        workload=workload,
        mode="reference" if references else "baseline",
        hardware_class=records[0].identity.hardware_class,
        plan_digest=plan_digest,
        sessions=tuple(sessions),
    )
