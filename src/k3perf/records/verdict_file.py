"""``verdict.json`` and back: a run's ``SuiteVerdict`` as a strict document with bounded
sizes.

A verdict file may come from a stranger's pull request. Nothing in it is trusted:
outcomes of cells and of the run are joined anew from the metrics, text is bounded here
and escaped where it is shown. Unknown keys are ignored, since the reader may be older
than the writer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3perf.documents import DocumentProblem, json_of
from k3perf.errors import UsageError
from k3perf.records.outcome import Outcome, join
from k3perf.records.plan_file import LongText, Share, ShortText

MAXIMUM_FILE_BYTES = 16 << 20
MAXIMUM_CELLS = 5_000
MAXIMUM_METRICS_PER_CELL = 200

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class MetricEntry(_Part):
    """``records.verdict.MetricVerdict`` as written."""

    metric: ShortText
    unit: ShortText
    outcome: Outcome
    baseline_value: Number | None = None
    now_value: Number | None = None
    loss_ratio: Number | None = None
    loss_lower_bound_ratio: Number | None = None
    loss_upper_bound_ratio: Number | None = None
    tolerance_ratio: Number | None = None
    tolerance_absolute: Number | None = None
    relevant: bool | None = None
    significant: bool | None = None
    smallest_detectable_loss_ratio: Number | None = None
    session_count: int = Field(ge=0, le=10**6, default=0)
    round_count: int = Field(ge=0, le=10**6, default=0)
    alpha: Number | None = None
    reason: LongText = ""
    look: int = Field(ge=0, le=10**6, default=0)
    cumulative_loss_ratio: Number | None = None
    waived_by: ShortText = ""


class DifferenceEntry(_Part):
    """``records.verdict.ConfigDifference`` as written; values may be any JSON."""

    key: ShortText
    was: Any = None
    now: Any = None
    forced_by: LongText = ""


class FailureEntry(_Part):
    """``samples.EngineFailure`` as written."""

    message: LongText
    cause: LongText = ""
    log_path: Annotated[str, Field(max_length=4_096)] = ""
    log_lines: tuple[LongText, ...] = Field(max_length=1_000, default=())


class InvalidEntry(_Part):
    """``samples.InvalidReason`` as written."""

    rule: ShortText
    text: LongText
    reading: Number | None = None
    limit: Number | None = None
    failure: FailureEntry | None = None


class CellEntry(_Part):
    """``records.verdict.CellVerdict`` as written, without its outcome: that is joined
    anew.
    """

    target: ShortText
    config: ShortText
    workload: ShortText
    mode: ShortText = ""
    metrics: tuple[MetricEntry, ...] = Field(max_length=MAXIMUM_METRICS_PER_CELL, default=())
    differences: tuple[DifferenceEntry, ...] = Field(max_length=1_000, default=())
    invalid_reasons: tuple[InvalidEntry, ...] = Field(max_length=1_000, default=())
    missing: LongText = ""
    buy: ShortText = "nothing"
    notes: tuple[LongText, ...] = Field(max_length=1_000, default=())
    buy_until_sessions: int = Field(ge=0, le=10**6, default=0)
    buy_until_rounds: int = Field(ge=0, le=10**6, default=0)
    times_only: bool = False

    @property
    def cell_id(self) -> str:
        """``target-config-workload``, as ``config.suite.Cell.cell_id``."""
        return f"{self.target}-{self.config}-{self.workload}"

    @property
    def outcome(self) -> Outcome:
        """The worst of the cell's findings, by the rule of
        ``records.verdict.CellVerdict.outcome``.
        """
        found = [metric.outcome for metric in self.metrics]
        if self.differences:
            found.append(Outcome.CONFIG_DRIFT)
        if self.invalid_reasons:
            found.append(Outcome.INVALID)
        if self.missing:
            found.append(Outcome.NO_BASELINE)
        return join(found)


class VerdictDocument(_Part):
    """One run, or several runs merged."""

    schema_version: Literal[1]
    run_id: ShortText
    commit: ShortText
    created_at_utc: ShortText
    vllm_version: ShortText = ""
    false_alarm_budget: Share
    gated_metric_count: int = Field(ge=0, le=10**6)
    cells: tuple[CellEntry, ...] = Field(max_length=MAXIMUM_CELLS)

    @property
    def outcome(self) -> Outcome:
        """The worst cell."""
        return join(cell.outcome for cell in self.cells)

    def dump(self) -> dict[str, Any]:
        """Plain JSON data with the joined outcomes added, as a run writes it."""
        data = self.model_dump(mode="json")
        data["outcome"] = self.outcome.value
        for entry, cell in zip(data["cells"], self.cells, strict=True):
            entry["outcome"] = cell.outcome.value
        return data


def parse_verdict(content: bytes, shown_name: str) -> VerdictDocument:
    """A verdict from a file's bytes. Raises UsageError, which never quotes the content,
    for what is too large or not of the form.
    """
    if len(content) > MAXIMUM_FILE_BYTES:
        raise UsageError(
            f"{shown_name}: {len(content)} bytes, a verdict file has at most {MAXIMUM_FILE_BYTES}."
            " Look at the run's artefacts."
        )
    try:
        return VerdictDocument.model_validate(json_of(content))
    except DocumentProblem as problem:
        raise UsageError(
            f"{shown_name} is not a verdict file: {problem.kind}. Give the verdict.json that a"
            " finished run wrote."
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])[:200]
        at = f" at {key!r}" if key else ""
        raise UsageError(
            f"{shown_name}{at}: is no verdict file: {first['type']}. Give the verdict.json that a"
            " finished run wrote."
        ) from None
