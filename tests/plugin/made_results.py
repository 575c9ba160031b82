"""Results of runs that never ran: sessions of a stand-in suite's cell with exact
timings, for tests of what is made of results.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from k3perf.config.suite import Suite, load_suite
from k3perf.records.samples import (
    Arm,
    ChunkRecord,
    EngineIdentity,
    RankMemory,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    StageTiming,
)
from k3perf.store.results import CellKey, FinishedCell, ResultWriter
from k3perf.workload.request_plan import expand

CELL = ("tiny", "fp8_kv", "quick")
TOKENS, REQUESTS, ROUNDS = 12, 8, 6
STEP_NS = 10_000_000


def write_results(
    path: Path, suite_root: Path, *, sessions: int, slower: float = 1.0, experiment: dict[str, str]
) -> None:
    """A finished run of ``sessions`` pairs of sessions in reference mode; the
    candidate's steps take ``slower`` times as long.
    """
    digest = plan_digest(load_suite(suite_root))
    names = []
    with ResultWriter(path, run_id=path.parent.name, experiment=experiment) as writer:
        for number in range(sessions):
            for arm, factor in ((Arm.REFERENCE, 1.0), (Arm.CANDIDATE, slower)):
                record = session(number, arm, digest)
                names.append(record.session_id)
                writer.session(record)
                for index in range(ROUNDS):
                    writer.round(
                        record.session_id,
                        made_round(
                            index, factor * (1 + 0.002 * ((3 * number + 5 * index) % 7 - 3))
                        ),
                    )
                writer.session_end(record.session_id, ())
        writer.cell(
            FinishedCell(CellKey(*CELL, "reference", digest), "PASS", tuple(names), valid=True)
        )


def plan_digest(suite: Suite) -> str:
    target, _, workload = CELL
    return expand(
        suite.workload(workload), vocabulary_size=suite.vocabulary_size(suite.target(target))
    ).digest


def session(number: int, arm: Arm, digest: str) -> SessionRecord:
    return SessionRecord(
        session_id=f"{arm}-{number}",
        target=CELL[0],
        config=CELL[1],
        workload=CELL[2],
        plan_digest=digest,
        arm=arm,
        started_at_utc=f"2026-01-01T00:{number:02}:00+00:00",
        identity=EngineIdentity(
            "0.32.0", "3.11.7", "2.13.0", "any-cpu", ("stand-in",), None, "here"
        ),
        resolved_config={"block_size": 16},
        stages=(StageTiming("load", 1.5),),
        memory=(RankMemory(0, weights_bytes=1 << 20, kv_cache_bytes=1 << 20),),
        rounds=(),
        kv_capacity_tokens=4096,
        engine_peak_resident_bytes=20 << 20,
        pair_id=f"pair-{number}",
    )


def made_round(index: int, factor: float) -> RoundRecord:
    start_ns = index * 10**9
    step_ns = int(STEP_NS * factor)
    chunks = tuple(ChunkRecord(start_ns + (token + 1) * step_ns, 1) for token in range(TOKENS))
    sample = RequestSample(
        0, RequestStatus.OK, start_ns, start_ns, chunks[-1].at_ns, chunks, 8, TOKENS, TOKENS
    )
    samples = tuple(replace(sample, request_index=number) for number in range(REQUESTS))
    return RoundRecord(
        index, RoundKind.MEASURED, start_ns, chunks[-1].at_ns, samples, pair_index=index
    )
