"""``k3perf load run`` against the mock server: values, files, verdicts, wrong use."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import subprocess

import pytest

from k3perf.cli.main import main
from k3perf.errors import ExitStatus
from k3perf.load.mock_server import Behaviour, Delay, Fault, FaultKind, start_mock_server
from k3perf.run import load_run
from k3perf.store.load_files import read_result

FAST = Behaviour(ttft=Delay(mean_ms=4), itl=Delay(mean_ms=1))


@pytest.fixture(scope="module")
def server():
    with start_mock_server(FAST) as running:
        yield running


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """The machine of the tests may be busy. The lag of the client has its tests."""
    monkeypatch.setattr(load_run, "_LAG_RULES", ())


def run(server, *options):
    few = ("--requests", "6", "--output-tokens", "5", "--warm-up", "0", "--client-processes", "1")
    chosen = [option for option in options if option in few[::2]]
    rest = [
        word
        for name, value in zip(few[::2], few[1::2], strict=True)
        if name not in chosen
        for word in (name, value)
    ]
    return main(["load", "run", "--base-url", server.base_url, *rest, *options])


def test_one_command_reports_what_the_server_did(server, tmp_path, capsys):
    server.behave(FAST)
    result, rows = tmp_path / "run.json", tmp_path / "rows.csv"
    status = run(server, "--slo", "ttft_p99_ms<=60000", "--output", str(result), "--csv", str(rows))
    assert status == ExitStatus.OK
    (level,) = read_result(result).levels
    assert (level.kind, level.level, level.statuses) == ("concurrency", 8, {"ok": 6})
    assert level.values["ttft_p50_ms"].value >= 4
    assert level.values["itl_mean_ms"].n == 6 * 4
    truth = server.truth()
    assert sum(sum(record["write_tokens"]) for record in truth) == 6 * 5
    assert level.endpoints[0].output_token_count == 6 * 5
    with rows.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["output_tokens"] for row in found] == ["5"] * 6
    assert [int(row["prompt_tokens"]) for row in found] == [
        record["prompt_token_count"] for record in sorted(truth, key=lambda r: r["ordinal"])
    ]
    assert all(float(row["ttft_ms"]) >= 4 for row in found)
    shown = capsys.readouterr().out
    assert "successful requests" in shown
    assert "met: ttft_p99_ms <= 60000" in shown


def test_a_missed_objective_has_its_own_status_and_never_that_of_a_regression(server, capsys):
    server.behave(FAST)
    assert run(server, "--slo", "ttft_p95_ms<=0.5") == ExitStatus.OBJECTIVE_MISSED
    assert "MISSED: ttft_p95_ms <= 0.5" in capsys.readouterr().out


def test_a_ladder_is_a_curve_and_names_the_best_level(server, tmp_path, capsys):
    server.behave(FAST)
    result = tmp_path / "run.json"
    status = run(
        server, "--concurrency", "4,1,2", "--slo", "error_ratio<=0", "--output", str(result)
    )
    assert status == ExitStatus.OK
    levels = read_result(result).levels
    assert [level.level for level in levels] == [1, 2, 4]
    rates = [level.values["output_tokens_per_s"].value for level in levels]
    assert rates[2] > rates[0]
    assert "the best level that met the objectives" in capsys.readouterr().out


def test_a_ladder_can_stop_where_an_objective_is_missed(server, tmp_path, capsys):
    server.behave(FAST)
    result = tmp_path / "run.json"
    options = ("--slo", "ttft_p50_ms<=0.1", "--stop-when-missed", "--output", str(result))
    assert run(server, "--rate", "50,100,200", *options) == ExitStatus.OBJECTIVE_MISSED
    (level,) = read_result(result).levels
    assert (level.kind, level.level) == ("rate_per_s", 50)
    assert "stopped at the first level" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [FaultKind.HTTP_500, FaultKind.NO_COUNTS, FaultKind.CUT])
def test_failed_requests_are_invalid_with_counts_and_the_first_detail(server, capsys, kind):
    server.behave(FAST.model_copy(update={"faults": (Fault(kind=kind, every=3, first=1),)}))
    assert run(server) == ExitStatus.INVALID
    shown = capsys.readouterr().out
    assert "INVALID: 2 of 6 requests failed" in shown
    assert "failed requests: 2 " in shown
    assert "The first: " in shown


def test_an_allowed_share_of_failures_is_an_objective(server):
    server.behave(FAST.model_copy(update={"faults": (Fault(kind=FaultKind.CUT, every=3),)}))
    assert run(server, "--slo", "error_ratio<=0.4") == ExitStatus.OK
    assert run(server, "--slo", "error_ratio<=0.1") == ExitStatus.OBJECTIVE_MISSED


def test_no_request_that_ended_well_is_never_ok(server):
    server.behave(FAST.model_copy(update={"faults": (Fault(kind=FaultKind.HTTP_500),)}))
    assert run(server, "--slo", "error_ratio<=1") == ExitStatus.INVALID


def test_conversations_of_a_file_quote_the_servers_replies(server, tmp_path, capsys):
    server.behave(FAST)
    prompts = tmp_path / "chats.json"
    turns = [
        {"from": "human", "value": "one two three"},
        {"from": "gpt", "value": "never sent"},
        {"from": "human", "value": "four five"},
    ]
    prompts.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    result = tmp_path / "run.json"
    status = run(server, "--prompts", str(prompts), "--requests", "3", "--output", str(result))
    assert status == ExitStatus.OK
    counts = sorted(record["prompt_token_count"] for record in server.truth())
    # words of the prompts; the second turn holds the first, a reply of 5 tokens, and two more
    assert counts == [3, 3, 3 + 5 + 2]
    (level,) = read_result(result).levels
    assert [turn.turn for turn in level.turns] == [1, 2]
    assert [turn.values["ttft_p50_ms"].n for turn in level.turns] == [2, 1]
    assert "turn 2, in ms" in capsys.readouterr().out


def test_token_ids_and_a_template_use_the_completions_route(server, tmp_path):
    server.behave(FAST)
    assert run(server, "--vocabulary-size", "4096", "--input-tokens", "7") == ExitStatus.OK
    assert {record["prompt_token_count"] for record in server.truth()} == {7}
    prompts, template = tmp_path / "p.jsonl", tmp_path / "t.jinja"
    prompts.write_text('{"prompt": "a b"}\n"c d e"\n')
    template.write_text("Question: {{ prompt }} Answer:")
    server.behave(FAST)
    options = ("--prompts", str(prompts), "--prompt-template", str(template), "--requests", "2")
    assert run(server, *options) == ExitStatus.OK
    assert sorted(record["prompt_token_count"] for record in server.truth()) == [4, 5]


def test_a_server_that_is_not_vllm_gets_standard_keys_only(server):
    """No ids, no counts in chunks: the usage at the end counts the tokens."""
    server.behave(FAST)
    assert run(server, "--server", "openai") == ExitStatus.OK


def test_structured_replies_are_checked(server, tmp_path, capsys):
    """The mock server's replies are words, which no schema allows."""
    server.behave(FAST)
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    assert run(server, "--json-schema", str(schema)) == ExitStatus.INVALID
    assert "not valid JSON" in capsys.readouterr().out


def test_several_endpoints_share_the_requests(server, tmp_path):
    server.behave(FAST)
    result = tmp_path / "run.json"
    with start_mock_server(FAST) as second:
        options = ("--base-url", f"{second.base_url}/v1", "--output", str(result))
        assert run(server, *options) == ExitStatus.OK
        assert len(second.truth()) == len(server.truth()) == 3
    (level,) = read_result(result).levels
    assert [share.request_count for share in level.endpoints] == [3, 3]


def test_a_trace_is_replayed_at_its_times(server, tmp_path):
    server.behave(FAST)
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 60 * n, "input_length": 5, "output_length": 3} for n in range(4)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    result = tmp_path / "run.json"
    assert run(server, "--trace", str(trace), "--output", str(result)) == ExitStatus.OK
    (level,) = read_result(result).levels
    assert (level.kind, level.request_count) == ("workload", 4)
    received = sorted(record["received_ns"] for record in server.truth())
    assert received[-1] - received[0] > 150_000_000


def test_https_and_the_api_key_reach_the_server(tmp_path, monkeypatch, capsys):
    """A TLS server of the standard library that answers as an OpenAI-style one does."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("openssl cannot make a certificate")
    monkeypatch.setenv("THE_KEY", "secret-of-the-test")
    with tls_server(certificate, key) as (port, seen):
        url = f"https://localhost:{port}/v1"
        options = ["load", "run", "--base-url", url, "--server", "openai", "--requests", "2",
                   "--output-tokens", "2", "--warm-up", "0", "--api-key-env", "THE_KEY"]  # fmt: skip
        output = tmp_path / "run.json"
        trusting = [*options, "--tls-ca-file", str(certificate), "--output", str(output)]
        assert main(trusting) == ExitStatus.OK
        assert {headers["authorization"] for headers in seen} == {"Bearer secret-of-the-test"}
        assert "secret-of-the-test" not in output.read_text()
        capsys.readouterr()
        assert main(options) == ExitStatus.INVALID
        assert "certificate" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "speed<=1"], "unknown value 'speed'"),
        (["--slo", "ttft_p99_ms=1"], "write NAME<=NUMBER"),
        (["--slo", "ttft_p99_ms<=e"], "is not a number"),
        (["--slo", "goodput_ratio>=0.9"], "needs --ttft-ms and --tpot-ms"),
        (["--rate", "1", "--concurrency", "1"], "not both"),
        (["--duration", "3"], "--duration needs --rate"),
        (["--ttft-ms", "3"], "both --ttft-ms and --tpot-ms"),
        (["--extra-body", "[1]"], "give a JSON object"),
        (["--extra-body", '{"stream": false}'], "remove the key"),
        (["--extra-body", "{"], "not valid JSON"),
        (["--header", "X"], "write NAME: VALUE"),
        (["--header", "Content-Length: 3"], "remove the option"),
        (["--api-key-env", "NO_SUCH_VARIABLE_HERE"], "the variable is not set"),
        (["--route", "completions"], "needs --vocabulary-size"),
        (["--route", "chat", "--vocabulary-size", "9"], "takes text only"),
        (["--prompts", "/no/such/file"], "No such file"),
        (["--output", "/no/such/folder/x.json"], "its directory does not exist"),
        (["--trace", "/no/trace", "--rate", "1"], "a trace has its own arrivals"),
        (["--base-url", "nonsense"], "neither http:// nor https://"),
        (["--json-schema", "/no/schema"], "No such file"),
        (["--workload", "/no/workload.yaml"], "/no/workload.yaml"),
    ],
)
def test_wrong_use_is_refused_in_words_before_anything_is_sent(server, capsys, options, message):
    server.behave(FAST)
    assert run(server, *options) == ExitStatus.USAGE
    assert message in capsys.readouterr().err
    assert server.truth() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no prompt was found"),
        ("{}\n{}", "no prompt was found"),
        ('{"prompt": "a"}\n{"prompt', "line 2"),
        ("[1, 2", "not valid JSON"),
        ('{"conversations": [{"from": "gpt", "value": "x"}]}', "no prompt was found"),
    ],
)
def test_a_prompt_file_without_prompts_is_refused(server, tmp_path, capsys, text, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    assert run(server, "--prompts", str(path)) == ExitStatus.USAGE
    assert message in capsys.readouterr().err


def test_a_level_must_be_a_count(server, capsys):
    with pytest.raises(SystemExit) as caught:
        run(server, "--concurrency", "1,0")
    assert caught.value.code == ExitStatus.USAGE
    assert "0 is not a count of 1 or more" in capsys.readouterr().err


def test_parquet_holds_the_rows_of_the_csv(server, tmp_path, capsys):
    server.behave(FAST)
    rows, table = tmp_path / "rows.csv", tmp_path / "rows.parquet"
    status = run(server, "--csv", str(rows), "--parquet", str(table))
    if importlib.util.find_spec("pyarrow") is None:
        assert status == ExitStatus.USAGE
        assert "--parquet needs pyarrow" in capsys.readouterr().err
        assert not rows.exists()
        return
    parquet = importlib.import_module("pyarrow.parquet")
    assert status == ExitStatus.OK
    found = parquet.read_table(table).to_pylist()
    with rows.open(newline="") as file:
        assert [row["ttft_ms"] for row in csv.DictReader(file)] == [
            str(row["ttft_ms"]) for row in found
        ]


def test_a_dead_address_is_invalid(capsys):
    assert main(["load", "run", "--base-url", "http://127.0.0.1:9"]) == ExitStatus.INVALID
    assert "no server answers at" in capsys.readouterr().err


class _Server:
    """What ``tls_server`` serves."""

    EVENTS = b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in (
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": "a"}}]},
            {"choices": [{"index": 0, "delta": {"content": "b"}}]},
            {"choices": [], "usage": {"prompt_tokens": 256, "completion_tokens": 2}},
        )
    )


def tls_server(certificate, key):
    import contextlib
    import ssl
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, content_type, body):
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self._answer("application/json", b'{"data": [{"id": "m"}]}')

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            assert set(asked) == {"model", "messages", "max_completion_tokens", "stream",
                                  "stream_options", "temperature", "top_p"}  # fmt: skip
            self._answer("text/event-stream", _Server.EVENTS + b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    @contextlib.contextmanager
    def serving():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield listening.server_address[1], seen
        finally:
            listening.shutdown()
            listening.server_close()

    return serving()
