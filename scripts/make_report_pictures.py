"""The README's pictures of reports, drawn from committed recordings of H200s:
``python -m scripts.make_report_pictures [FOLDER]``.

The regression is ``checks/h200-k3-check-slow-step-5``: an engine whose steps really
took 5 % longer. Its verdict is judged again with the committed baselines. The history
has one point for each recording of the same cell. Needs Chromium and Playwright.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.ci.history import entries_of, series_of, slides
from k3perf.ci.history_report import HistoryContext, history_report
from k3perf.config.suite import load_suite
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.gate.reference import References
from k3perf.records.baseline import Baseline
from k3perf.records.verdict import VerdictDocument
from k3perf.report.attribution import attributed
from k3perf.run.report_file import write_run_report
from k3perf.store.baselines import read_target_baselines
from k3perf.store.measurements import read_measurement_file

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = ROOT / "perf_tests" / "recordings"
TARGET, CONFIG, WORKLOAD = "h200-k3", "default", "serve_1k"


def main() -> None:
    """Write the two pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    suite = load_suite(ROOT / "perf_tests")
    baselines = read_target_baselines(ROOT / "baselines", TARGET)
    policy = with_noise_of(
        target_policy(suite, suite.target(TARGET), gated_metric_count=3), baselines
    )
    with tempfile.TemporaryDirectory() as work:
        report, history = Path(work) / "run", Path(work) / "history.html"
        judged_run(report, policy, {one.config: one for one in baselines})
        write_run_report([report], report / "report.html", ROOT / "baselines")
        history.write_text(recorded_history(policy, baselines), encoding="utf-8")
        photograph(report / "report.html", folder / "report-regressed.png", 1160)
        photograph(history, folder / "report-history.png", 900)


def judged_run(folder: Path, policy: Policy, baselines: dict[str, Baseline]) -> None:
    """A results directory of the recorded check: its measurements, and the verdict that
    the gate comes to."""
    folder.mkdir()
    source = RECORDINGS / "checks" / "h200-k3-check-slow-step-5-2026-11-30.json"
    file = read_measurement_file(source)
    verdicts = []
    for cell in file.cells:
        baseline = baselines[cell.config]
        verdict = compare(baseline, cell, policy, References())
        verdicts.append(replace(verdict, attribution=attributed(verdict, cell, baseline)))
    document = VerdictDocument(
        schema_version=1,
        run_id=file.run_id,
        commit=file.commit,
        created_at_utc=file.created_at_utc,
        vllm_version=file.identity.get("vllm", ""),
        false_alarm_budget=0.01,
        gated_metric_count=3,
        cells=tuple(verdicts),
    )
    (folder / "verdict.json").write_text(document.to_json(), encoding="utf-8")
    shutil.copy(source, folder / "measurements.json")


def recorded_history(policy: Policy, baselines: tuple[Baseline, ...]) -> str:
    """The history page of every recording of the cell without an injected fault."""
    entries = []
    for path in sorted(RECORDINGS.rglob("h200-k3-*.json")):
        file = read_measurement_file(path)
        cells = [
            cell
            for cell in file.cells
            if (cell.target, cell.config, cell.workload) == (TARGET, CONFIG, WORKLOAD)
        ]
        if file.injected or "slow-step" in path.name or "held" in path.name:
            continue
        entries += entries_of(
            cells,
            run_id=file.run_id,
            commit=file.commit,
            created_at_utc=file.created_at_utc,
            vllm_version=file.identity.get("vllm", "absent"),
        )

    def tolerance_of(_target: str, config: str, workload: str, metric: str) -> float | None:
        found = policy.for_cell(config, workload).tolerances.get(metric)
        return None if found is None else found.loss_ratio or 0.0

    series = series_of(entries)
    known = {(one.target, one.config): one for one in baselines}
    context = HistoryContext(known, (), tolerance_of, datetime.now(UTC).date())
    return history_report(series, slides(series), context)


def photograph(page_file: Path, picture: Path, height: int) -> None:
    """The top of a page in a headless Chromium, every chart in it drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1180, "height": height})
        page.goto(f"file://{page_file}")
        page.wait_for_selector("[data-drawn]")
        page.wait_for_timeout(1_000)
        page.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    main()
