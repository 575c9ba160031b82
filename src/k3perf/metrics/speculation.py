"""The server's counters of speculative decoding to acceptance metrics of a round.
Pure.

Acceptance can sink while the answers stay right, so it is judged on its own. Equality
with plain greedy answers is another metric (``metrics.quality``): vLLM does not promise
it.
"""

from __future__ import annotations

from typing import Final

from k3perf.records.measurement import MetricValue
from k3perf.records.samples import RoundRecord

DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={}}}"
POSITIONS: Final = ("first", "second", "third")


def acceptance_values(record: RoundRecord) -> dict[str, MetricValue]:
    """Mean accepted length, the bonus token included, and the share of drafts that
    were accepted up to each of the first positions. None without drafts.
    """
    drafts = record.counters.get(DRAFTS)
    values = {"acceptance_length_tokens": _per_draft(record.counters.get(ACCEPTED), drafts, 1.0)}
    for index, name in enumerate(POSITIONS):
        accepted = record.counters.get(_BY_POSITION.format(index))
        values[f"acceptance_{name}_ratio"] = _per_draft(accepted, drafts, 0.0)
    return values


def _per_draft(accepted: float | None, drafts: float | None, bonus: float) -> MetricValue:
    if accepted is None or not drafts:
        return MetricValue(None, 0, {"no_draft": 1})
    return MetricValue(bonus + accepted / drafts, int(drafts))
