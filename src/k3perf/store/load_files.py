"""Files of a load run: the result as JSON, and one row per request as CSV or Parquet.
Each is replaced as a whole.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from k3perf.errors import ConfigFileError, UsageError
from k3perf.metrics.latency import tpot_ns, ttft_ns
from k3perf.records.load_result import LoadLevel, LoadResult
from k3perf.records.samples import RequestSample
from k3perf.store.atomic import replace_file
from k3perf.units import NS_PER_MS

_RESULT: Final = TypeAdapter(LoadResult)
COLUMNS: Final = (
    "kind",
    "level",
    "request_index",
    "turn",
    "status",
    "scheduled_ms",
    "sent_ms",
    "first_token_ms",
    "last_token_ms",
    "end_ms",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "prompt_tokens",
    "requested_output_tokens",
    "output_tokens",
    "cached_prompt_tokens",
    "chunk_count",
    "detail",
)
"""Times of events count from the level's start. An unknown value is empty."""


def write_result(path: Path, result: LoadResult) -> None:
    """Replace the file with the result. Raises OSError."""
    replace_file(path, _RESULT.dump_json(result, indent=1) + b"\n")


def read_result(path: Path) -> LoadResult:
    """Read a result. Raises UsageError or ConfigFileError."""
    try:
        return _RESULT.validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}. Give a file of `k3perf load run`.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigFileError(
            path,
            ".".join(map(str, first["loc"])) or "the file",
            str(first.get("input"))[:80],
            str(first["msg"]),
            "Give a file that `k3perf load run --output` wrote.",
        ) from None


def request_rows(
    level: LoadLevel, samples: Sequence[RequestSample], turn_of: Mapping[int, int], start_ns: int
) -> list[dict[str, Any]]:
    """One row per request, with the keys of ``COLUMNS``."""

    def since_start(at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - start_ns) / NS_PER_MS

    def in_ms(duration_ns: float | None) -> float | None:
        return None if duration_ns is None else duration_ns / NS_PER_MS

    return [
        {
            "kind": level.kind,
            "level": level.level,
            "request_index": sample.request_index,
            "turn": turn_of[sample.request_index],
            "status": sample.status.value,
            "scheduled_ms": since_start(sample.scheduled_ns),
            "sent_ms": since_start(sample.sent_ns),
            "first_token_ms": since_start(sample.first_token_ns),
            "last_token_ms": since_start(sample.last_token_ns),
            "end_ms": since_start(sample.end_ns),
            "ttft_ms": in_ms(ttft_ns(sample)),
            "tpot_ms": in_ms(tpot_ns(sample)),
            "e2e_ms": (
                in_ms(sample.last_token_ns - sample.sent_ns)
                if sample.last_token_ns is not None and sample.sent_ns is not None
                else None
            ),
            "prompt_tokens": sample.prompt_token_count,
            "requested_output_tokens": sample.requested_output_token_count,
            "output_tokens": sample.output_token_count,
            "cached_prompt_tokens": sample.cached_prompt_token_count,
            "chunk_count": len(sample.chunks),
            "detail": sample.detail,
        }
        for sample in samples
    ]


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file with the rows under a header line. Raises OSError."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue())


def check_parquet() -> None:
    """Raise UsageError if Parquet cannot be written here."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "--parquet needs pyarrow, which is not installed: pip install 'k3perf[parquet]', or"
            " use --csv"
        )


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the file with the rows. Raises OSError, or UsageError without pyarrow."""
    check_parquet()
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    replace_file(path, buffer.getvalue())
