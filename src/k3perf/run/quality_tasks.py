"""Tasks of lm-evaluation-harness against running servers, judged by stated error rates.

The harness runs as a process of a Python that has it, since it is heavy. With a
reference server both answer the same questions and McNemar's exact test judges. Without
one the score is compared with an approved score, which needs more questions.
"""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scipy.stats import norm

from k3perf.errors import MeasurementInvalid, UsageError
from k3perf.stats.proportions import detectable_loss, mcnemar_p, unpaired_need

_SCORES: Final = ("exact_match", "acc", "acc_norm", "pass@1")
"""Per-question scores of 0 or 1, in order of preference."""

Answers = dict[str, bool]
"""A question's id to whether it was answered right."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What is run, and the error rates. ``questions`` None: every question."""

    python: Path
    model: str
    tokenizer: str
    tasks: tuple[str, ...]
    output: Path
    loss: float
    alpha: float
    power: float
    questions: int | None = None
    include_path: Path | None = None
    timeout_s: float = 7200.0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task: its score, whether a loss is proven, and the sentence for a reader."""

    task: str
    score: float
    lost: bool
    text: str


def run_and_judge(
    plan: TaskPlan, server: str, reference_server: str | None, reference_score: float | None
) -> tuple[TaskResult, ...]:
    """Every task on one or two servers. Raises UsageError for a plan that cannot be
    judged and MeasurementInvalid when the harness fails.
    """
    if not plan.tasks:
        raise UsageError("--tasks names no task. Give names such as gsm8k,mmlu.")
    if reference_server is None and reference_score is None:
        raise UsageError(
            "nothing to compare with. Give --reference-server, or --reference-score of an approved"
            " run."
        )
    if reference_server is None and len(plan.tasks) > 1:
        raise UsageError(
            "--reference-score applies to one task. Give one task, or run two servers."
        )
    for name in ("loss", "alpha", "power"):
        if not 0 < getattr(plan, name) < 1:
            raise UsageError(f"--{name} must lie between 0 and 1")
    if plan.questions is not None and plan.questions < 1:
        raise UsageError(f"--questions {plan.questions}: give a number of 1 or more")
    if not 0 < plan.timeout_s < math.inf:
        raise UsageError(f"--timeout {plan.timeout_s:g}: give a positive number of seconds")
    for url in (server, reference_server):
        if url is not None and not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is not a server: give a URL such as http://127.0.0.1:8000")
    candidate = run_harness(plan, server, plan.output / "candidate")
    reference = (
        None
        if reference_server is None
        else run_harness(plan, reference_server, plan.output / "reference")
    )
    # Bonferroni's rule: the tasks share the false-alarm rate
    alpha = plan.alpha / len(plan.tasks)
    return tuple(
        against_score(task, answers, float(reference_score or 0), plan, alpha)
        if reference is None
        else paired_result(task, answers, reference.get(task, {}), plan, alpha)
        for task, answers in candidate.items()
    )


def run_harness(plan: TaskPlan, server: str, output: Path) -> dict[str, Answers]:
    """Run the harness on a server; every task's answers, by question."""
    output.mkdir(parents=True, exist_ok=True)
    command = [str(plan.python), "-m", "lm_eval", "--model", "local-completions"]
    arguments = f"base_url={server.rstrip('/')}/v1/completions,model={plan.model}"
    arguments += f",tokenizer={plan.tokenizer},num_concurrent=16,max_retries=1"
    command += ["--model_args", arguments, "--tasks", ",".join(plan.tasks), "--log_samples"]
    command += ["--output_path", str(output)]
    command += [] if plan.questions is None else ["--limit", str(plan.questions)]
    command += [] if plan.include_path is None else ["--include_path", str(plan.include_path)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=plan.timeout_s
        )
    except FileNotFoundError:
        raise UsageError(
            f"--python {plan.python}: not found. Name a Python that has lm_eval[api]."
        ) from None
    except subprocess.TimeoutExpired:
        raise MeasurementInvalid(
            f"the tasks on {server} took longer than {plan.timeout_s:g} s. Give fewer"
            " --questions or a longer --timeout."
        ) from None
    if "No module named lm_eval" in ended.stderr:
        raise UsageError(
            f"--python {plan.python} has no lm_eval. Install `lm_eval[api]` there, or name"
            " another Python."
        )
    if ended.returncode:
        last = " ".join(ended.stderr.strip().splitlines()[-2:])[-400:]
        raise MeasurementInvalid(f"lm_eval failed on {server}: {last}")
    found = {task: read_answers(output, task) for task in plan.tasks}
    for task, answers in found.items():
        if not answers:
            raise MeasurementInvalid(f"{output}: lm_eval left no answers of task {task}")
    return found


def read_answers(output: Path, task: str) -> Answers:
    """The newest ``samples_TASK_....jsonl`` below ``output``. Empty without one.

    A task may score each answer by several filters, one line for each. The first
    filter counts.
    """
    files = sorted(output.rglob(f"samples_{task}_*.jsonl"), key=lambda path: path.name)
    if not files:
        return {}
    found: Answers = {}
    chosen: object = None
    for line in files[-1].read_text(encoding="utf-8").splitlines():
        try:
            sample: dict[str, Any] = json.loads(line)
            chosen = sample.get("filter") if not found else chosen
            if sample.get("filter") != chosen:
                continue
            score = next(float(sample[name]) for name in _SCORES if name in sample)
            found[f"{sample['doc_id']}"] = score > 0.5
        except (ValueError, KeyError, StopIteration, TypeError):
            raise MeasurementInvalid(
                f"{files[-1]}: an answer has no score of 0 or 1 ({', '.join(_SCORES)})"
            ) from None
    return found


def paired_result(
    task: str, now: Answers, was: Answers, plan: TaskPlan, alpha: float
) -> TaskResult:
    """The same questions to both servers."""
    if now.keys() != was.keys():
        raise MeasurementInvalid(f"{task}: the two servers answered different questions")
    lost = sum(was[key] and not now[key] for key in now)
    won = sum(now[key] and not was[key] for key in now)
    score, before = _score(now), _score(was)
    p = mcnemar_p(lost, won)
    # a loss in size, and not by chance
    bad = p < alpha and before - score > 0
    text = (
        f"{task}: {score:.2%}, reference {before:.2%}, {len(now)} questions; {lost} lost, {won}"
        f" won, p {p:.3g} (alpha {alpha:.3g}): {'LOSS' if bad else 'no loss proven'}"
    )
    discordant = (lost + won) / len(now)
    if not bad and discordant > 0:
        least = _paired_detectable(discordant, len(now), alpha, plan.power)
        text += f"; these questions detect a loss of {least:.2%} with power {plan.power:g}"
    return TaskResult(task, score, bad, text)


def against_score(
    task: str, now: Answers, approved: float, plan: TaskPlan, alpha: float
) -> TaskResult:
    """One server against an approved score of as many other answers."""
    if not plan.loss < approved < 1:
        raise UsageError(
            f"--reference-score {approved:g} must lie between --loss {plan.loss:g} and 1"
        )
    score = _score(now)
    need = unpaired_need(approved, plan.loss, alpha, plan.power)
    deviation = math.sqrt(approved * (1 - approved) * 2 / len(now))
    bad = approved - score > norm.isf(alpha) * deviation
    text = (
        f"{task}: {score:.2%}, approved {approved:.2%}, {len(now)} questions; a drop of"
        f" {norm.isf(alpha) * deviation:.2%} or more is a loss: {'LOSS' if bad else 'none proven'}"
    )
    if len(now) < need.questions:
        least = detectable_loss(approved, len(now), alpha, plan.power)
        text += (
            f"; a loss of {plan.loss:.2%} needs {need.questions:,} questions, these detect"
            f" {least:.2%}"
        )
    return TaskResult(task, score, bad, text)


def _score(answers: Answers) -> float:
    return sum(answers.values()) / len(answers)


def _paired_detectable(discordant: float, questions: int, alpha: float, power: float) -> float:
    """The inverse of Connor's formula to first order, at most ``discordant``."""
    z = norm.isf(alpha) + norm.isf(1 - power)
    return min(discordant, float(z * math.sqrt(discordant / questions)))
