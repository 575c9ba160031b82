"""Every stored record describes itself: a JSON schema with all of its keys."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from k3perf.ci.history import HistoryEntry
from k3perf.documents import adapter
from k3perf.records.baseline import Baseline, Waiver
from k3perf.records.measurement import MeasurementFile
from k3perf.records.plan_file import PlanDocument
from k3perf.records.samples import RequestSample, RoundRecord, SessionRecord
from k3perf.records.verdict import VerdictDocument
from k3perf.store.baselines import Proposal
from k3perf.store.found_rates import StoredRates
from k3perf.store.results import FinishedCell

STORED: tuple[Any, ...] = (
    Baseline,
    FinishedCell,
    HistoryEntry,
    MeasurementFile,
    PlanDocument,
    Proposal,
    RequestSample,
    RoundRecord,
    SessionRecord,
    StoredRates,
    VerdictDocument,
    Waiver,
)


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_a_stored_record_has_a_schema_of_all_its_keys(kind: Any) -> None:
    schema = adapter(kind).json_schema()
    schema = schema["$defs"][kind.__name__] if "$ref" in schema else schema
    names = {field.name for field in fields(kind)} if is_dataclass(kind) else kind.model_fields
    assert set(schema["properties"]) == set(names)
