"""Play one round with several client processes, if one core cannot carry the streams,
and merge the results without losing a sample.

All processes share the machine's monotonic clock. So they start at one instant, and
their times need no translation.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Final

from k3perf.errors import MeasurementInvalid
from k3perf.load.clock import monotonic_ns
from k3perf.load.live_counts import CountsListener, SharedCounts, total_of
from k3perf.load.packed import from_bytes
from k3perf.load.request_form import RequestForm
from k3perf.load.round_samples import EndpointLoad, RoundSamples, percentile_ns, schedule_lags_ns
from k3perf.units import NS_PER_MS
from k3perf.workload.request_plan import Plan

READY: Final = b"ready\n"
_START_DELAY_NS: Final = 50 * NS_PER_MS
_STOP_POLL_S: Final = 0.05


def split_plan(plan: Plan, process_count: int) -> tuple[Plan, ...]:
    """Split the plan into at most ``process_count`` parts. Conversations stay whole,
    and the parts share the concurrency.
    """
    if plan.concurrency is not None:
        process_count = min(process_count, plan.concurrency)
    part_of: dict[int, int] = {}
    first_turns = 0
    for request in plan.requests:
        if request.previous_index is None:
            part_of[request.index] = first_turns % process_count
            first_turns += 1
        else:
            part_of[request.index] = part_of[request.previous_index]
    parts = []
    for number in range(min(process_count, first_turns)):
        concurrency = plan.concurrency
        if concurrency is not None:
            concurrency = concurrency // process_count + (number < concurrency % process_count)
        requests = tuple(request for request in plan.requests if part_of[request.index] == number)
        parts.append(replace(plan, requests=requests, concurrency=concurrency))
    return tuple(parts)


def run_in_processes(
    plan: Plan,
    *,
    base_urls: Sequence[str],
    model_name: str,
    process_count: int,
    should_stop: Callable[[], bool],
    form: RequestForm,
    on_counts: CountsListener | None = None,
) -> RoundSamples:
    """Play the plan with client processes. ``on_counts`` gets the live counts twenty
    times a second.

    Raises MeasurementInvalid at once if a process dies. The others are then ended.
    """
    workers: list[_Worker] = []
    try:
        for part in split_plan(plan, process_count):
            workers.append(
                _Worker(part, base_urls, model_name, form)
            )  # each must be ended, even if the next one cannot start
        for worker in workers:
            worker.await_ready()
        start_ns = monotonic_ns() + _START_DELAY_NS
        for worker in workers:
            worker.tell(b"%d\n" % start_ns)
        finished = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(workers, should_stop, finished, on_counts), daemon=True
        )
        watcher.start()
        try:
            results = _all_results(workers)
        finally:
            finished.set()
            watcher.join()
    finally:
        for worker in workers:
            worker.end()
    return merge_rounds(results)


def merge_rounds(results: Sequence[RoundSamples]) -> RoundSamples:
    """Merge parts into one round: every sample in plan order, the worst lag, the sum of
    CPU time.
    """
    samples = tuple(
        sorted(
            (sample for part in results for sample in part.samples),
            key=lambda sample: sample.request_index,
        )
    )
    all_lags_ns, _ = schedule_lags_ns(samples)
    by_endpoint = zip(*(part.endpoints for part in results), strict=True)
    return RoundSamples(
        samples=samples,
        start_ns=min(part.start_ns for part in results),
        end_ns=max(part.end_ns for part in results),
        client_lag_p99_ns=max(part.client_lag_p99_ns for part in results),
        client_cpu_ns=sum(part.client_cpu_ns for part in results),
        schedule_lag_p99_ns=percentile_ns(all_lags_ns, 0.99),
        endpoints=tuple(
            EndpointLoad(
                base_url=loads[0].base_url,
                request_count=sum(load.request_count for load in loads),
                output_token_count=sum(load.output_token_count for load in loads),
            )
            for loads in by_endpoint
        ),
        stopped=any(part.stopped for part in results),
    )


class _Worker:
    """One client process. It reads a pickled task, writes ``ready``, reads a start
    time, and writes packed samples. Any later line means stop.
    """

    def __init__(
        self, part: Plan, base_urls: Sequence[str], model_name: str, form: RequestForm
    ) -> None:
        self.counts = SharedCounts()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "k3perf.load.worker", str(self.counts.descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(self.counts.descriptor,),
            )
        except OSError as error:
            self.counts.close()
            raise MeasurementInvalid(
                f"cannot start a client process: {sys.executable}: {error.strerror}"
            ) from None
        self.expected_count = len(part.requests)
        self._task = pickle.dumps((part, tuple(base_urls), model_name, form))

    def await_ready(self) -> None:
        """Send the task and wait until everything is encoded and connected."""
        self.tell(self._task)
        if self._stdout.readline() != READY:
            raise MeasurementInvalid(f"a client process did not become ready: {self._last_words()}")

    def tell(self, message: bytes) -> None:
        """Write to the process. A dead process is noticed when its answer is read."""
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def result(self) -> RoundSamples:
        """The process's part of the round."""
        answer = self._stdout.read()
        if self._process.wait() != 0 or not answer:
            raise MeasurementInvalid(
                f"a client process died with status {self._process.returncode}:"
                f" {self._last_words()}"
            )
        seen = from_bytes(answer)
        if len(seen.samples) != self.expected_count:
            raise MeasurementInvalid(
                f"a client process returned {len(seen.samples)} samples for {self.expected_count}"
                " requests"
            )
        return seen

    def end(self) -> None:
        """Make sure that the process has ended."""
        self.kill()
        self._process.communicate()
        self.counts.close()

    def kill(self) -> None:
        """End the process now, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        return self._process.stdout

    def _last_words(self) -> str:
        assert self._process.stderr is not None  # noqa: S101 - asked for above
        return (
            self._process.stderr.read().decode("utf-8", "replace").strip()[-500:]
            or "it printed nothing"
        )


def _all_results(workers: Sequence[_Worker]) -> list[RoundSamples]:
    """Read all answers, each in a thread. A full pipe would otherwise block a process
    while another one is read. The first failure ends every process.
    """
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(worker.result) for worker in workers]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
        return [future.result() for future in futures]


def _watch(
    workers: Sequence[_Worker],
    should_stop: Callable[[], bool],
    finished: threading.Event,
    on_counts: CountsListener | None,
) -> None:
    """Report the counts until the round is over, and pass a stop on."""
    stopping = False
    while not finished.wait(_STOP_POLL_S):
        if on_counts is not None:
            on_counts(total_of([worker.counts for worker in workers]))
        if not stopping and should_stop():
            stopping = True
            for worker in workers:
                worker.tell(b"stop\n")
