"""Whole rounds against the mock server: every planned request comes back, on time and
with its status.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import psutil
import pytest

from k3perf.errors import MeasurementInvalid, UsageError
from k3perf.load.generator import run_round
from k3perf.load.mock_server import Behaviour, Delay, Fault, FaultKind, start_mock_server
from k3perf.load.mock_server.truth import prompt_crc32
from k3perf.load.packed import from_bytes, to_bytes
from k3perf.load.processes import split_plan
from k3perf.load.wire import Endpoint, http_request
from k3perf.records.samples import RequestStatus
from k3perf.units import NS_PER_MS
from k3perf.workload.request_plan import expand
from tests.unit.workload.specs import small_spec

FAST = Behaviour(ttft=Delay(mean_ms=4), itl=Delay(mean_ms=1))
HANGING = Behaviour(ttft=Delay(mean_ms=5), itl=Delay(mean_ms=60_000))


def play(server, *, urls=None, rounds=0, **spec):
    plan = expand(small_spec(**spec), vocabulary_size=4096).for_round(rounds)
    return plan, run_round(plan, base_url=urls or server.base_url, model_name="mock")


def statuses(seen):
    return Counter(sample.status for sample in seen.samples)


def most_at_once(seen):
    edges = sorted(
        [(sample.sent_ns, 1) for sample in seen.samples]
        + [(sample.end_ns, -1) for sample in seen.samples]
    )
    running, most = 0, 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


ARRIVALS = [
    {"kind": "all_at_once"},
    {"kind": "closed_loop", "concurrency": 3},
    {"kind": "constant", "rate_per_s": 200},
    {"kind": "poisson", "rate_per_s": 200},
    {"kind": "gamma", "rate_per_s": 200, "shape": 0.5},
    {"kind": "ramp", "start_rate_per_s": 100, "end_rate_per_s": 400, "duration_s": 0.05},
]


@pytest.mark.parametrize("arrival", ARRIVALS, ids=lambda arrival: arrival["kind"])
def test_every_planned_request_comes_back_in_plan_order(mock_server, arrival):
    mock_server.behave(FAST)
    plan, seen = play(mock_server, arrival=arrival)
    assert statuses(seen) == {RequestStatus.OK: 12}
    assert [sample.request_index for sample in seen.samples] == list(range(12))
    assert all(
        sample.output_token_count == 8 == sum(chunk.token_count for chunk in sample.chunks)
        for sample in seen.samples
    )
    assert [sample.prompt_token_count for sample in seen.samples] == [
        request.prompt_token_count for request in plan.requests
    ]
    assert seen.client_cpu_ns > 0
    for request, sample in zip(plan.requests, seen.samples, strict=True):
        if request.offset_ns is not None:
            assert sample.scheduled_ns == seen.start_ns + request.offset_ns
            assert sample.sent_ns >= sample.scheduled_ns


def test_the_server_gets_the_planned_prompts(mock_server):
    mock_server.behave(FAST)
    plan, _ = play(mock_server, rounds=2)
    assert {record["prompt_crc32"] for record in mock_server.truth()} == {
        prompt_crc32(r.prompt_token_ids) for r in plan.requests
    }


def test_a_closed_loop_keeps_its_concurrency(mock_server):
    mock_server.behave(FAST)
    _, seen = play(mock_server, arrival={"kind": "closed_loop", "concurrency": 3})
    assert most_at_once(seen) == 3
    ends = sorted(sample.end_ns for sample in seen.samples)
    followers = sorted(sample.scheduled_ns for sample in seen.samples)[3:]
    assert followers == ends[:9]


def test_a_trace_is_held_back_at_its_limit(mock_server, tmp_path):
    from k3perf.workload.trace import TraceRow, trace_text
    from tests.unit.workload.specs import trace_spec

    (tmp_path / "t.jsonl").write_text(
        trace_text(TraceRow(0, 20, 8, (index,)) for index in range(6))
    )
    plan = expand(
        trace_spec("t.jsonl", concurrency_limit=2), vocabulary_size=4096, trace_directory=tmp_path
    )
    mock_server.behave(FAST)
    seen = run_round(plan, base_url=mock_server.base_url, model_name="mock")
    assert statuses(seen) == {RequestStatus.OK: 6}
    assert most_at_once(seen) == 2


def test_conversations_wait_and_quote_the_reply(mock_server):
    mock_server.behave(FAST)
    plan, seen = play(
        mock_server,
        requests=4,
        arrival={"kind": "all_at_once"},
        conversation={"turns": 2, "think_time_s": 0.05},
    )
    assert statuses(seen) == {RequestStatus.OK: 4}
    for index in (1, 3):
        assert seen.samples[index].scheduled_ns == seen.samples[index - 1].end_ns + 50 * NS_PER_MS
    replies = {0: tuple(range(10, 18)), 2: tuple(range(10, 18))}
    wanted = {prompt_crc32(request.prompt_with_replies(replies)) for request in plan.requests}
    assert {record["prompt_crc32"] for record in mock_server.truth()} == wanted


def test_a_failed_turn_does_not_end_its_conversation(mock_server):
    mock_server.behave(FAST.model_copy(update={"faults": (Fault(kind=FaultKind.CUT, every=100),)}))
    _, seen = play(
        mock_server,
        requests=3,
        arrival={"kind": "closed_loop", "concurrency": 1},
        conversation={"turns": 3},
    )
    assert [sample.status for sample in seen.samples] == [
        RequestStatus.CUT,
        RequestStatus.OK,
        RequestStatus.OK,
    ]


def test_parallel_sampling_counts_all_sequences(mock_server):
    mock_server.behave(FAST)
    _, seen = play(mock_server, sampling={"sequences": 3, "temperature": 0.7})
    assert statuses(seen) == {RequestStatus.OK: 12}
    assert {sample.output_token_count for sample in seen.samples} == {24}


FAULTS = {
    FaultKind.HTTP_429: RequestStatus.HTTP_STATUS,
    FaultKind.HTTP_500: RequestStatus.HTTP_STATUS,
    FaultKind.CLOSED: RequestStatus.CUT,
    FaultKind.RESET: RequestStatus.RESET,
    FaultKind.CUT: RequestStatus.CUT,
    FaultKind.NO_DONE: RequestStatus.CUT,
    FaultKind.STALL: RequestStatus.STALLED,
    FaultKind.INVALID_JSON: RequestStatus.BAD_PAYLOAD,
    FaultKind.ERROR_EVENT: RequestStatus.ENGINE_ERROR,
    FaultKind.NOT_HTTP: RequestStatus.BAD_PAYLOAD,
    FaultKind.WRONG_CONTENT_TYPE: RequestStatus.BAD_PAYLOAD,
    FaultKind.SPLIT_UTF8: RequestStatus.OK,
    FaultKind.NO_COUNTS: RequestStatus.NO_USAGE,
    FaultKind.ONLY_FINAL_USAGE: RequestStatus.OK,
    FaultKind.FEWER_TOKENS: RequestStatus.SHORT,
    FaultKind.MORE_TOKENS: RequestStatus.LONG,
}


def test_every_fault_is_tested():
    assert set(FAULTS) == set(FaultKind)


@pytest.mark.parametrize("kind", FaultKind)
def test_faults_are_counted_by_kind_and_none_is_lost(mock_server, kind):
    mock_server.behave(FAST.model_copy(update={"faults": (Fault(kind=kind, every=3),)}))
    # a busy machine delays any byte, so only tests of stalls use a short limit
    _, seen = play(mock_server, stall_timeout_s=0.4 if kind is FaultKind.STALL else 60)
    expected = Counter({RequestStatus.OK: 8})
    expected[FAULTS[kind]] += 4
    assert statuses(seen) == expected, [sample.detail for sample in seen.samples]
    assert all(
        sample.output_token_count == 8
        for sample in seen.samples
        if sample.status is RequestStatus.OK
    )
    if FAULTS[kind] is not RequestStatus.OK:
        assert all(
            sample.detail for sample in seen.samples if sample.status is not RequestStatus.OK
        )


def test_a_request_that_takes_too_long_is_timed_out(mock_server):
    mock_server.behave(FAST.model_copy(update={"itl": Delay(mean_ms=300)}))
    _, seen = play(mock_server, requests=2, request_timeout_s=0.5)
    assert statuses(seen) == {RequestStatus.TIMED_OUT: 2}


def test_nobody_there_is_refused(unused_tcp_port):
    plan = expand(small_spec(), vocabulary_size=4096)
    seen = run_round(plan, base_url=f"http://127.0.0.1:{unused_tcp_port}", model_name="mock")
    assert statuses(seen) == {RequestStatus.REFUSED: 12}
    assert all(sample.sent_ns is None and not sample.chunks for sample in seen.samples)


def test_a_server_that_dies_ends_the_round(mock_server):
    import os
    import signal

    plan = expand(small_spec(), vocabulary_size=4096)
    with start_mock_server(HANGING) as doomed:
        killer = threading.Timer(0.3, os.kill, (doomed.pid, signal.SIGKILL))
        killer.start()
        seen = run_round(plan, base_url=doomed.base_url, model_name="mock")
        killer.join()
    assert sum(statuses(seen).values()) == 12
    assert set(statuses(seen)) <= {RequestStatus.RESET, RequestStatus.CUT, RequestStatus.REFUSED}


@pytest.mark.parametrize("process_count", [1, 2])
def test_a_round_can_be_stopped(mock_server, process_count):
    mock_server.behave(HANGING)
    plan = expand(small_spec(), vocabulary_size=4096)
    seen = run_round(
        plan,
        base_url=mock_server.base_url,
        model_name="mock",
        stop=lambda: (
            len(mock_server.truth()) == 4
        ),  # asked until the server has everything that may be in flight
        process_count=process_count,
    )
    assert seen.stopped
    assert statuses(seen) == {RequestStatus.ABANDONED: 12}
    assert sum(sample.sent_ns is not None for sample in seen.samples) == 4


def test_an_event_stops_a_round_before_anything_is_sent(mock_server):
    mock_server.behave(HANGING)
    stop = threading.Event()
    stop.set()
    plan = expand(small_spec(arrival={"kind": "constant", "rate_per_s": 0.1}), vocabulary_size=4096)
    seen = run_round(plan, base_url=mock_server.base_url, model_name="mock", stop=stop)
    assert statuses(seen) == {RequestStatus.ABANDONED: 12}
    assert sum(sample.sent_ns is not None for sample in seen.samples) <= 1


def test_a_plan_without_requests_ends_at_once(mock_server):
    from dataclasses import replace

    plan = replace(expand(small_spec(), vocabulary_size=4096), requests=())
    assert run_round(plan, base_url=mock_server.base_url, model_name="mock").samples == ()


def test_a_mistake_in_the_client_is_raised_and_does_not_hang(mock_server, monkeypatch):
    from k3perf.load.round_loop import RoundLoop

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(RoundLoop, "_after", broken)
    mock_server.behave(FAST)
    with pytest.raises(ZeroDivisionError):
        play(mock_server)


def test_several_endpoints_are_taken_in_turn(mock_server):
    mock_server.behave(FAST)
    with start_mock_server(FAST) as other:
        _, seen = play(mock_server, urls=(mock_server.base_url, other.base_url))
        assert [len(mock_server.truth()), len(other.truth())] == [6, 6]
    assert statuses(seen) == {RequestStatus.OK: 12}
    assert [(load.request_count, load.output_token_count) for load in seen.endpoints] == [
        (6, 48),
        (6, 48),
    ]


def test_a_conversation_stays_on_its_endpoint(mock_server):
    mock_server.behave(FAST)
    with start_mock_server(FAST) as other:
        _, seen = play(
            mock_server, urls=(mock_server.base_url, other.base_url), conversation={"turns": 2}
        )
        assert [load.request_count for load in seen.endpoints] == [6, 6]
        lengths = [
            sorted(record["prompt_token_count"] for record in server.truth())
            for server in (mock_server, other)
        ]
    pairs = [sample.prompt_token_count for sample in seen.samples]
    assert lengths[0] == sorted(pairs[0:2] + pairs[4:6] + pairs[8:10])


def test_several_processes_lose_no_sample(mock_server):
    mock_server.behave(FAST)
    plan = expand(small_spec(requests=30), vocabulary_size=4096)
    seen = run_round(plan, base_url=mock_server.base_url, model_name="mock", process_count=2)
    assert statuses(seen) == {RequestStatus.OK: 30}
    assert [sample.request_index for sample in seen.samples] == list(range(30))
    assert most_at_once(seen) <= 4
    assert seen.endpoints[0].request_count == 30
    assert {record["prompt_crc32"] for record in mock_server.truth()} == {
        prompt_crc32(r.prompt_token_ids) for r in plan.requests
    }


def test_a_dead_client_process_is_an_error_not_a_short_round(mock_server, monkeypatch):
    monkeypatch.setattr("k3perf.load.processes.sys.executable", "/bin/false")
    with pytest.raises(MeasurementInvalid, match="client process"):
        run_round(
            expand(small_spec(), vocabulary_size=4096),
            base_url=mock_server.base_url,
            model_name="mock",
            process_count=2,
        )


def test_a_split_keeps_conversations_whole_and_shares_the_concurrency():
    plan = expand(small_spec(requests=10, conversation={"turns": 2}), vocabulary_size=4096)
    parts = split_plan(plan, 3)
    assert [part.concurrency for part in parts] == [2, 1, 1]
    assert [[request.index for request in part.requests] for part in parts] == [
        [0, 1, 6, 7],
        [2, 3, 8, 9],
        [4, 5],
    ]
    assert len(split_plan(plan, 9)) == 4


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://x", "neither http:// nor https://"),
        ("127.0.0.1:8000", "neither http:// nor https://"),
        ("http://", "the host is missing"),
        ("http://x:99999", "the port is not a number from 1 to 65535"),
        ("http://x:0", "the port is not a number from 1 to 65535"),
        ("http://x:eight", "the port is not a number from 1 to 65535"),
        ("http://[::1:8000", "the host is not valid"),
        ("http://a b:80", "the host holds characters"),
        ("http://me:secret@x", "remove the user name and password"),
        ("http://x/v1?key=1", "remove everything from the first ?"),
        ("http://x/a b", "the path holds a blank"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_words(url, problem):
    with pytest.raises(UsageError) as caught:
        Endpoint.parse(url)
    assert problem in str(caught.value)
    assert "give a base URL such as" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base_url", "authority"),
    [
        ("http://h:8000", "http://h:8000", "h:8000"),
        ("http://h:8000/v1", "http://h:8000", "h:8000"),
        ("http://h:8000/v1/", "http://h:8000", "h:8000"),
        ("https://h/some/v1", "https://h:443/some", "h:443"),
        ("http://[::1]:8000/", "http://[::1]:8000", "[::1]:8000"),
        ("http://h", "http://h:80", "h:80"),
    ],
)
def test_an_address_is_the_servers_root_with_or_without_v1(url, base_url, authority):
    endpoint = Endpoint.parse(url)
    assert (endpoint.base_url, endpoint.authority) == (base_url, authority)
    head = http_request(endpoint, "/v1/completions", b"{}", (("Host", "other"), ("X-A", "b")))
    assert head.startswith(
        f"POST {endpoint.path}/v1/completions HTTP/1.1\r\nHost: other\r\n".encode()
    )
    assert head.endswith(b"X-A: b\r\nContent-Length: 2\r\n\r\n{}")


def test_a_client_process_that_dies_ends_the_round_at_once(mock_server):
    """The server never answers the others, which would otherwise wait for a minute."""
    mock_server.behave(HANGING)
    killed = []

    def is_worker(child):
        try:
            return "k3perf.load.worker" in child.cmdline()
        except psutil.Error:  # another test's child that has ended
            return False

    def kill_one():
        next(filter(is_worker, psutil.Process().children())).kill()
        killed.append(time.monotonic())

    def on_counts(counts):
        if counts.sent >= 2 and not killed:
            kill_one()

    with pytest.raises(MeasurementInvalid, match="client process died with status -9"):
        run_round(
            expand(small_spec(requests=6), vocabulary_size=4096),
            base_url=mock_server.base_url,
            model_name="mock",
            process_count=2,
            on_counts=on_counts,
        )
    assert time.monotonic() - killed[0] < 2


def test_live_counts_follow_a_round_in_its_process(mock_server):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=10), itl=Delay(mean_ms=20)))
    plan = expand(small_spec(requests=6), vocabulary_size=4096)
    counts = []
    seen = run_round(
        plan,
        base_url=mock_server.base_url,
        model_name="mock",
        own_process=True,
        on_counts=counts.append,
    )
    assert [sample.status for sample in seen.samples] == [RequestStatus.OK] * 6
    assert max(count.sent for count in counts) == 6
    assert [count.read for count in counts] == sorted(count.read for count in counts)
    assert {count.failed for count in counts} == {0}


def test_packed_samples_are_the_same_samples(mock_server):
    _, seen = play(mock_server)
    assert from_bytes(to_bytes(seen)) == seen


@pytest.fixture
def unused_tcp_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def test_an_interrupt_ends_a_round(mock_server):
    import os
    import signal

    mock_server.behave(HANGING)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            play(mock_server)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, previous)
