"""Play one round of a plan against one or several endpoints. Synchronous to
its caller.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from k3perf.load.clock import Clock, monotonic_ns
from k3perf.load.decode import Expected, decode_exchange, json_problem, reply_text
from k3perf.load.exchange import Exchange
from k3perf.load.live_counts import CountsListener
from k3perf.load.processes import run_in_processes
from k3perf.load.request_form import RequestForm
from k3perf.load.round_loop import RoundLoop
from k3perf.load.round_samples import EndpointLoad, RoundSamples, percentile_ns, schedule_lags_ns
from k3perf.load.wire import Endpoint
from k3perf.records.samples import RequestSample, RequestStatus
from k3perf.workload.request_plan import Plan, PlannedRequest

_SPARE_FILES = 64
DEFAULT_FORM = RequestForm()


def run_round(
    plan: Plan,
    *,
    base_url: str | Sequence[str],
    model_name: str,
    clock: Clock = monotonic_ns,
    stop: threading.Event | Callable[[], bool] | None = None,
    start_at_ns: Callable[[], int] | None = None,
    process_count: int = 1,
    form: RequestForm = DEFAULT_FORM,
    on_counts: CountsListener | None = None,
    own_process: bool = False,
) -> RoundSamples:
    """Play the plan once and return a sample for every planned request. ``form``
    writes the requests.

    Time-outs are the plan's. ``stop`` ends the round within 0.2 s once it is set (or
    true). Requests in flight or not sent yet are then ABANDONED. ``start_at_ns`` is
    called for the start time when everything is encoded and connected. The default is
    now. ``process_count`` above 1 plays the plan with that many client processes on the
    real clock. One core carries about 20,000 tokens per second (docs/load.md).
    With ``own_process`` a single client has a separate process too, so that the caller
    can show ``on_counts``. Connections are opened and bodies encoded before the round's
    clock starts. Must not be called from a running event loop.
    """
    base_urls = (base_url,) if isinstance(base_url, str) else tuple(base_url)
    endpoints = tuple(Endpoint.parse(url) for url in base_urls)
    if plan.requests and (own_process or (process_count > 1 and len(plan.requests) > 1)):
        return run_in_processes(
            plan,
            base_urls=base_urls,
            model_name=model_name,
            process_count=process_count,
            should_stop=_as_question(stop),
            form=form,
            on_counts=on_counts,
        )
    _allow_open_files(len(plan.requests) if plan.concurrency is None else plan.concurrency)
    round_loop = RoundLoop(
        plan,
        endpoints,
        model_name=model_name,
        form=form,
        clock=clock,
        should_stop=_as_question(stop),
        on_counts=on_counts,
    )
    return _play(plan, form, round_loop, base_urls, start_at_ns or clock)


def _play(
    plan: Plan,
    form: RequestForm,
    round_loop: RoundLoop,
    base_urls: tuple[str, ...],
    start_at_ns: Callable[[], int],
) -> RoundSamples:
    """Run the loop in this process, and decode what it read."""
    with _no_collector_pauses():
        cpu_before_ns = time.thread_time_ns()
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(round_loop.run(start_at_ns))
        read_lag_ns = _read_lag_p99_ns(round_loop)
        samples = _decode_all(plan, form, round_loop)
        cpu_ns = time.thread_time_ns() - cpu_before_ns
    all_lags_ns, first_lags_ns = schedule_lags_ns(samples)
    return RoundSamples(
        samples=samples,
        start_ns=round_loop.start_ns,
        end_ns=round_loop.end_ns,
        client_lag_p99_ns=max(
            percentile_ns(round_loop.lags_ns, 0.99),
            percentile_ns(first_lags_ns, 0.99),
            read_lag_ns,
        ),
        client_cpu_ns=cpu_ns,
        schedule_lag_p99_ns=percentile_ns(all_lags_ns, 0.99),
        endpoints=_endpoint_loads(base_urls, round_loop.exchanges, samples),
        stopped=round_loop.stopped,
    )


def _new_event_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _as_question(stop: threading.Event | Callable[[], bool] | None) -> Callable[[], bool]:
    if stop is None:
        return lambda: False
    return stop.is_set if isinstance(stop, threading.Event) else stop


@contextmanager
def _no_collector_pauses() -> Iterator[None]:
    """Disable garbage collection. A full collection pauses the reader for milliseconds,
    and a round makes few cycles.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _allow_open_files(connection_count: int) -> None:
    """Raise the soft limit of open files to what the round needs, up to the
    hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connection_count + soft // 2 + _SPARE_FILES
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
        )


def _read_lag_p99_ns(round_loop: RoundLoop) -> int:
    """How late pieces of replies were read, 99th percentile over all pieces. Every
    piece counts, so short rounds and bursts show.
    """
    times_ns = [
        at_ns
        for exchange in round_loop.exchanges
        if exchange is not None
        for at_ns in exchange.times_ns
    ]
    lags_ns = round_loop.gatherer.turns.lags_ns(times_ns)
    if not len(lags_ns):
        return 0
    return int(np.percentile(lags_ns, 99, method="inverted_cdf"))


def _decode_all(plan: Plan, form: RequestForm, round_loop: RoundLoop) -> tuple[RequestSample, ...]:
    samples = []
    for request, exchange in zip(plan.requests, round_loop.exchanges, strict=True):
        samples.append(_sample(plan, form, request, exchange, round_loop.end_ns))
        if exchange is not None:
            exchange.pieces.clear()
            exchange.times_ns.clear()
    return tuple(samples)


def _sample(
    plan: Plan,
    form: RequestForm,
    request: PlannedRequest,
    exchange: Exchange | None,
    end_ns: int,
) -> RequestSample:
    expected = Expected(
        None if form.has_text else request.prompt_token_count,
        request.output_token_count,
        plan.spec.sampling.sequences,
        exact=form.exact_output,
    )
    if exchange is None:
        exchange = Exchange(request.index, end_ns, 0)
    if exchange.end_ns is None:
        exchange.failure = (
            RequestStatus.ABANDONED,
            "the round was stopped before this request was done",
        )
    sample = decode_exchange(exchange, expected, request_index=request.index, round_end_ns=end_ns)
    if form.expects_json and sample.status is RequestStatus.OK:
        problem = json_problem(reply_text(exchange))
        if problem:
            return replace(sample, status=RequestStatus.BAD_PAYLOAD, detail=problem)
    return sample


def _endpoint_loads(
    base_urls: Sequence[str], exchanges: Sequence[Exchange | None], samples: Sequence[RequestSample]
) -> tuple[EndpointLoad, ...]:
    requests = [0] * len(base_urls)
    tokens = [0] * len(base_urls)
    for exchange, sample in zip(exchanges, samples, strict=True):
        if exchange is not None:
            requests[exchange.endpoint_index] += 1
            tokens[exchange.endpoint_index] += sample.output_token_count
    return tuple(
        EndpointLoad(url, *counts) for url, *counts in zip(base_urls, requests, tokens, strict=True)
    )
