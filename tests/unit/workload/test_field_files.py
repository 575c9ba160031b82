"""Files as others write them: each is read as its form's documentation says, or refused
with a next step that works.

``field_files/files.yaml`` holds files of the field; the tables below add further
members of each kind.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import random
import re
import shlex
import threading
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.cli.main import main
from k3perf.errors import ExitStatus, UsageError
from k3perf.load.mock_server.prefix_cache import PrefixCache
from k3perf.workload.log_import import import_log
from k3perf.workload.request_plan import expand
from k3perf.workload.trace import read_trace
from tests.unit.workload.specs import trace_spec

FIELD_FILES = Path(__file__).parent / "field_files"
CASES = yaml.safe_load((FIELD_FILES / "files.yaml").read_text(encoding="utf-8"))
S = 1763000000


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def log(*times: Any, field: str = "created", prompt: Any = 600, reply: Any = 7) -> str:
    return lines(
        *(
            {field: at, "usage": {"prompt_tokens": prompt, "completion_tokens": reply}}
            for at in times
        )
    )


def mooncake(*rows: tuple[Any, int, int, Any]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return lines(*(dict(zip(names, row, strict=True)) for row in rows))


def run_import(
    path: Path, output: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str]:
    status = main(["load", "import-log", str(path), "--output", str(output), *options])
    return status, capsys.readouterr().err


def seen_in(trace: Any) -> tuple[list[float], list[list[int]]]:
    """(gaps in seconds, tokens)."""
    gaps = [
        (after.timestamp_ms - before.timestamp_ms) / 1e3 for before, after in pairwise(trace.rows)
    ]
    return gaps, [[row.input_length, row.output_length] for row in trace.rows]


def shared_tokens(path: Path) -> int:
    trace = read_trace(path)
    plan = expand(trace_spec(path.name), vocabulary_size=4096, trace_file=path)
    cache = PrefixCache(trace.block_tokens)
    return sum(cache.look_up_and_add(request.prompt_token_ids) for request in plan.requests)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_file_of_the_field_is_read_or_refused_in_words(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = FIELD_FILES / case["file"], tmp_path / "trace.jsonl"
    status, told = run_import(path, output, capsys)
    if "refusal" in case:
        assert status == ExitStatus.USAGE
        assert all(part in told for part in [case["file"], *case["refusal"]])
        assert "import-log" not in told
        with pytest.raises(UsageError) as refused:
            read_trace(path)
        assert all(part in str(refused.value) for part in [case["file"], *case["refusal"]])
        assert "import-log" not in str(refused.value)
        return
    assert status == 0, told
    assert all(part in told for part in [case["file"], *case["says"]]), told
    left_out = json.loads((tmp_path / "trace.jsonl.source.json").read_text())["left_out"]
    assert sum(left_out.values()) == case["left_out"]
    for name in [output, path] if "replay" in case["by"] else [output]:
        gaps, tokens = seen_in(read_trace(name))
        assert gaps == pytest.approx(case["gaps_s"], abs=1e-3)
        assert tokens == case["tokens"]
    if "shared_prompt_tokens" in case:
        assert shared_tokens(path) == shared_tokens(output) == case["shared_prompt_tokens"]


PAIR = [[600, 7], [600, 7]]
USAGE = {"usage": {"prompt_tokens": 600, "completion_tokens": 7}}
LENGTHS = {"input_length": 600, "output_length": 7}
COUNTS = {"prompt_tokens": 600, "completion_tokens": 7}
TWO = [{"created": S, **USAGE}, {"created": S + 1, **USAGE}]
BURST_GPT_2 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,u1,43,GPT-4,906,446,1352,API log
19440161.0,u2,2,ChatGPT,36,29,65,API log
19440170.0,u3,2,ChatGPT,36,0,36,API log
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:00.001,1,600,7
2024-10-15 00:00:01.001,0,600,7
"""
LITELLM_TABLE = """request_id,startTime,endTime,prompt_tokens,completion_tokens
r,2026-01-01T00:00:00Z,2026-01-01T00:00:09Z,600.0,7.0
r,2026-01-01T00:00:01Z,2026-01-01T00:00:02Z,600.0,7.0
"""
# name -> (content, gaps in s, tokens, records left out, what the command says)
READ: dict[str, tuple[str | bytes, list[float], list[list[int]], int, list[str]]] = {
    # units
    "microseconds": (
        log(S * 10**6, S * 10**6 + 1_500_000),
        [1.5],
        PAIR,
        0,
        ["microseconds since 1970"],
    ),
    "float_seconds": (log(S + 0.25, S + 1.5), [1.25], PAIR, 0, [" seconds since 1970"]),
    "milliseconds_as_text": (
        log(f"{S}123", f"{S + 1}123"),
        [1.0],
        PAIR,
        0,
        ["milliseconds since 1970"],
    ),
    "two_units_in_one_log": (
        log(S, (S + 1) * 1000),
        [1.0],
        PAIR,
        0,
        ["milliseconds since 1970", " seconds since 1970"],
    ),
    "unit_in_the_name": (
        log(0, 1500, field="timestamp_ms"),
        [1.5],
        PAIR,
        0,
        ["milliseconds since the start"],
    ),
    "camel_unit_in_the_name": (
        log(5, 6.5, field="arrivalTimeSeconds"),
        [1.5],
        PAIR,
        0,
        [" seconds since the start"],
    ),
    "name_and_size_disagree": (
        log(S * 1000, S, (S + 2) * 1000, field="timestamp_ms"),
        [2.0],
        PAIR,
        1,
        ["another size than the unit"],
    ),
    "out_of_order": (log(S + 3, S, S + 1), [1.0, 2.0], [*PAIR, [600, 7]], 0, []),
    "some_since_the_start": (log(S, 5, S + 1), [1.0], PAIR, 1, ["without a unit"]),
    # dates
    "comma_decimals": (
        log("2026-01-01 00:00:00,250", "2026-01-01 00:00:01,500", field="time"),
        [1.25],
        PAIR,
        0,
        ["read as UTC"],
    ),
    "zones": (
        log("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:01Z"),
        [1.0],
        PAIR,
        0,
        ["with a zone"],
    ),
    "utc_word": (
        log("2026-01-01 00:00:00 UTC", "2026-01-01 00:00:01 UTC"),
        [1.0],
        PAIR,
        0,
        ["with a zone"],
    ),
    "date_beyond_the_calendar": (
        log("2026-01-01", "99999-01-01", "2026-01-02"),
        [86400.0],
        PAIR,
        1,
        ["neither a number nor a date"],
    ),
    # impossible values
    "infinity": (
        log(S, S + 1).replace(f"{S + 1}", "Infinity") + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["not finite"],
    ),
    "exponent_400": (
        log(S, 1.5).replace("1.5", "1e400") + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["not finite"],
    ),
    "digits_400": (log(S, S + 2) + log(10**400), [2.0], PAIR, 1, ["not finite"]),
    "count_of_400_digits": (
        log(S, S + 2) + log(S, prompt=10**400),
        [2.0],
        PAIR,
        1,
        ["not a whole number"],
    ),
    "digits_5000": (
        log(S) + '{"created":' + "9" * 5000 + "}\n" + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["not JSON"],
    ),
    "negative_time": (log(S, -5, S + 1), [1.0], PAIR, 1, ["without a unit"]),
    "deep_nesting": (
        log(S) + "[" * 100_000 + "\n" + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["nested too deeply"],
    ),
    "deep_nesting_first": (
        "{" + '"a":{' * 100_000 + "\n" + log(S, S + 2),
        [2.0],
        PAIR,
        1,
        ["nested too deeply"],
    ),
    # counts
    "counts_as_text": (log(S, S + 1, prompt="600", reply="7.0"), [1.0], PAIR, 0, []),
    "half_a_token": (
        log(S) + log(S + 1, prompt=600.5) + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["not a whole number"],
    ),
    "no_reply": (
        log(S) + log(S + 1, reply=0) + log(S + 2, reply=-3) + log(S + 3),
        [3.0],
        PAIR,
        2,
        ["no tokens in prompt or reply"],
    ),
    "impossible_count": (
        log(S) + log(S + 1, prompt=10**15) + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["above 10,000,000"],
    ),
    "count_null": (
        log(S) + log(S + 1, prompt=None) + log(S + 2),
        [2.0],
        PAIR,
        1,
        ["no token counts"],
    ),
    # forms of proxies and clients
    "litellm_floats": (
        lines(*({"startTime": at, "endTime": S + 9.5, **COUNTS} for at in (S, S + 1))),
        [1.0],
        PAIR,
        0,
        ["LiteLLM"],
    ),
    "litellm_created_is_later": (
        lines(*({"created": S + 5, "startTime": at, **COUNTS} for at in (S, S + 1))),
        [1.0],
        PAIR,
        0,
        ["startTime"],
    ),
    "only_the_end": (log(S, S + 1) + lines({"endTime": S, **COUNTS}), [1.0], PAIR, 1, ["no time"]),
    "batch_output": (
        lines(*({"response": {"body": record}} for record in TWO)),
        [1.0],
        PAIR,
        0,
        [],
    ),
    "responses_api": (
        lines(
            *(
                {"created_at": S + i, "usage": {"input_tokens": 600, "output_tokens": 7}}
                for i in (0, 1)
            )
        ),
        [1.0],
        PAIR,
        0,
        [],
    ),
    "langfuse": (
        lines(
            *(
                {"startTime": f"2026-01-01T00:00:0{i}Z", "usage": {"input": 600, "output": 7}}
                for i in (0, 1)
            )
        ),
        [1.0],
        PAIR,
        0,
        [],
    ),
    "camel_counts": (
        lines(*({"timestamp": S + i, "promptTokens": 600, "completionTokens": 7} for i in (0, 1))),
        [1.0],
        PAIR,
        0,
        [],
    ),
    # ways to write records
    "utf_16_little": (codecs.BOM_UTF16_LE + log(S, S + 1).encode("utf-16-le"), [1.0], PAIR, 0, []),
    "utf_16_big": (codecs.BOM_UTF16_BE + log(S, S + 1).encode("utf-16-be"), [1.0], PAIR, 0, []),
    "utf_16_without_mark": (log(S, S + 1).encode("utf-16-le"), [1.0], PAIR, 0, []),
    "bom_before_csv": (
        codecs.BOM_UTF8
        + b"created,prompt_tokens,completion_tokens\r\n%d,600,7\r\n%d,600,7\r\n" % (S, S + 1),
        [1.0],
        PAIR,
        0,
        ["CSV"],
    ),
    "old_mac_line_ends": (log(S, S + 1).replace("\n", "\r"), [1.0], PAIR, 0, []),
    "no_last_line_end": (log(S, S + 1).rstrip("\n"), [1.0], PAIR, 0, []),
    "blank_lines": ("\n \n" + log(S, S + 1).replace("\n", "\n\n"), [1.0], PAIR, 0, []),
    "line_separator_in_text": (
        log(S)
        + json.dumps({"created": S + 1, "note": "a\u2028b\x85c", **USAGE}, ensure_ascii=False),
        [1.0],
        PAIR,
        0,
        [],
    ),
    "bytes_that_are_not_utf_8": (
        log(S).encode() + b'{"note":"\xff\xfe",' + log(S + 1).encode()[1:],
        [1.0],
        PAIR,
        0,
        [],
    ),
    "gzip": (gzip.compress(log(S, S + 1).encode()), [1.0], PAIR, 0, []),
    "array_on_one_line": (json.dumps(TWO), [1.0], PAIR, 0, ["a JSON array"]),
    "array_indented": (json.dumps(TWO, indent=2), [1.0], PAIR, 0, ["a JSON array"]),
    "array_that_breaks_off": (json.dumps(TWO)[:-1] + ', {"cre', [1.0], PAIR, 1, ["is truncated"]),
    "array_with_an_error": (
        json.dumps(TWO)[:-1] + ' {"a": 1}, 7, 8, 9, "and more"]',
        [1.0],
        PAIR,
        1,
        ["not JSON from here on"],
    ),
    "objects_over_several_lines": (
        "\n".join(json.dumps(record, indent=2) for record in TWO),
        [1.0],
        PAIR,
        0,
        ["JSON objects"],
    ),
    "list_under_a_key": (json.dumps({"object": "list", "data": TWO}), [1.0], PAIR, 0, []),
    "list_under_a_key_indented": (json.dumps({"data": TWO}, indent=1), [1.0], PAIR, 0, []),
    "words_before_the_log": ("[INFO] proxy starts\n" + log(S, S + 1), [1.0], PAIR, 1, ["not JSON"]),
    "first_line_cut": ('{"created": 17630\n' + log(S, S + 1), [1.0], PAIR, 1, ["not JSON"]),
    # CSV
    "burstgpt_2": (
        BURST_GPT_2,
        [51.0],
        [[906, 446], [36, 29]],
        1,
        ["BurstGPT", "no tokens in prompt or reply"],
    ),
    "azure_multimodal": (AZURE_2025, [1.0], PAIR, 0, ["Azure"]),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,600,7\n1.5,600,7\n",
        [1.5],
        PAIR,
        0,
        ["Vidur", " seconds since the start"],
    ),
    "semicolons": (
        f"created;prompt_tokens;completion_tokens\n{S};600;7\n{S + 1};600;7\n",
        [1.0],
        PAIR,
        0,
        ["CSV"],
    ),
    "tabs": (
        f"created\tprompt_tokens\tcompletion_tokens\n{S}\t600\t7\n{S + 1}\t600\t7\n",
        [1.0],
        PAIR,
        0,
        ["CSV"],
    ),
    "quoted_line_end": (
        f'created,note,prompt_tokens,completion_tokens\n{S},"a\nb, c",600,7\n{S + 1},d,600,7\n',
        [1.0],
        PAIR,
        0,
        ["CSV"],
    ),
    "short_row": (
        f"created,prompt_tokens,completion_tokens\n{S},600,7\n{S},600\n{S + 1},600,7\n",
        [1.0],
        PAIR,
        1,
        ["fields than the header"],
    ),
    "litellm_table": (LITELLM_TABLE, [1.0], PAIR, 0, []),
    # traces in another form
    "trace_with_epoch_milliseconds": (
        mooncake((S * 1000, 600, 7, [1, 2]), (S * 1000 + 1500, 600, 7, [1, 3])),
        [1.5],
        PAIR,
        0,
        ["milliseconds since 1970"],
    ),
    "trace_with_dates": (
        mooncake(
            ("2026-01-01T00:00:00Z", 600, 7, [1, 2]), ("2026-01-01T00:00:01Z", 600, 7, [1, 3])
        ),
        [1.0],
        PAIR,
        0,
        ["ISO 8601"],
    ),
    "trace_of_two_weeks": (
        mooncake((0, 600, 7, [1, 2]), (14 * 86_400_000, 600, 7, [1, 3])),
        [14 * 86400.0],
        PAIR,
        0,
        ["milliseconds since the start"],
    ),
    "trace_with_bad_rows": (
        mooncake((0, 600, 7, [1, 2]), (5, 600, 7, [1]), (1000, 600, 7, [1, 3])),
        [1.0],
        PAIR,
        1,
        ["do not fit blocks of 512 tokens"],
    ),
    "bailian_without_ids": (
        lines(*({"chat_id": 1, "timestamp": at, **LENGTHS} for at in (61.5, 62.5))),
        [1.0],
        PAIR,
        0,
        ["Bailian", "share nothing"],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_other_members_of_each_kind_are_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, gaps_s, tokens, left_out_count, says = READ[name]
    path, output = tmp_path / "given.log", tmp_path / "trace.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, told = run_import(path, output, capsys)
    assert status == 0, told
    assert all(part in told for part in says), told
    source = json.loads((tmp_path / "trace.jsonl.source.json").read_text())
    assert sum(source["left_out"].values()) == left_out_count, source
    gaps, seen = seen_in(read_trace(output))
    assert gaps == pytest.approx(gaps_s, abs=1e-3)
    assert seen == tokens


FORTY = {"input_length": 40, "output_length": 5}
# name -> (content, block tokens, prompt tokens that hit an unbounded cache)
TRACES: dict[str, tuple[str, int, int]] = {
    "blocks_of_64": (mooncake((0, 200, 5, [1, 2, 3, 4]), (5, 260, 5, [1, 2, 3, 5, 6])), 64, 192),
    "blocks_of_16": (mooncake((0, 40, 5, [1, 2, 3]), (5, 60, 5, [1, 2, 4, 5])), 16, 32),
    "blocks_of_128_written_by_us": (
        lines({"timestamp": 0, **FORTY, "block_tokens": 128, "hash_ids": [4]}),
        128,
        0,
    ),
    "ids_are_strings": (mooncake((0, 600, 5, ["a1", "b2"]), (5, 700, 5, ["a1", "c3"])), 512, 512),
    "some_rows_without_ids": (
        mooncake((0, 600, 5, [0, 1]), (5, 600, 5, None), (9, 700, 5, [0, 3])),
        512,
        512,
    ),
    "bailian_ids_of_whole_blocks": (
        lines(*({"chat_id": i, "timestamp": i, **FORTY, "hash_ids": [1, 2]} for i in (1, 2))),
        16,
        32,
    ),
    "an_array": (
        f"[{','.join(mooncake((0, 600, 5, [0, 1]), (5, 700, 5, [0, 3])).splitlines())}]",
        512,
        512,
    ),
    "short_prompts_keep_the_documented_size": (mooncake((0, 30, 5, [1]), (5, 30, 5, [1])), 512, 0),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_replayed_with_its_own_blocks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, block_tokens, hits = TRACES[name]
    path, output = tmp_path / "given.jsonl", tmp_path / "trace.jsonl"
    path.write_text(content)
    assert run_import(path, output, capsys)[0] == 0
    for trace in (path, output):
        assert read_trace(trace).block_tokens == block_tokens
        assert shared_tokens(trace) == hits


def test_a_block_size_that_nothing_tells_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """48 is no power of two: the replay refuses, and the command that it names works."""
    path, output = tmp_path / "given.jsonl", tmp_path / "trace.jsonl"
    path.write_text(
        mooncake((0, 100, 5, [1, 2, 3]), (5, 150, 5, [1, 2, 4, 5]), (9, 200, 5, [1, 2, 4, 6, 7]))
    )
    with pytest.raises(UsageError, match=r"line \d: hash_ids.*--block-tokens N"):
        read_trace(path)
    assert run_import(path, output, capsys, "--block-tokens", "48")[0] == 0
    assert read_trace(output).block_tokens == 48
    assert shared_tokens(output) == 96 + 144


def test_ids_for_whole_blocks_only_are_taken_with_a_given_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "given.jsonl", tmp_path / "trace.jsonl"
    path.write_text(mooncake((0, 600, 5, [1]), (5, 1100, 5, [1, 2])))
    assert run_import(path, output, capsys, "--block-tokens", "512")[0] == 0
    assert shared_tokens(output) == 512


def test_a_time_without_a_unit_is_asked_for_and_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "given.jsonl", tmp_path / "trace.jsonl"
    path.write_text(log(0.5, 2.0, field="timestamp"))
    status, told = run_import(path, output, capsys)
    assert status == ExitStatus.USAGE
    assert "--time-unit s, ms, us or ns" in told
    assert not output.exists()
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        assert run_import(path, output, capsys, "--time-unit", unit)[0] == 0
        assert seen_in(read_trace(output))[0] == pytest.approx([1.5 * factor], abs=1e-3)
    path.write_text(log(S * 1000, S * 1000 + 5))
    assert run_import(path, output, capsys, "--time-unit", "s")[0] == ExitStatus.USAGE, (
        "the size contradicts the given unit"
    )


# name -> (content, what the refusal says)
REFUSED: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["the file is empty"]),
    "blank": ("\n \r\n", ["the file is empty"]),
    "bom_alone": (codecs.BOM_UTF8, ["the file is empty"]),
    "prose": (
        "Dear all,\nthe server was slow.\n",
        ["not JSON", "JSON lines, a JSON array, or CSV with a header line"],
    ),
    "csv_without_a_header": (
        "2023-11-16 18:00:00,300,40\n2023-11-16 18:00:01,900,50\n",
        ["CSV with a header line"],
    ),
    "csv_without_counts": (
        "timestamp,created,model\n1763000000,1763000000,m\n",
        ["no token counts", "columns are timestamp, created, model"],
    ),
    "csv_without_rows": ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ["no record can be used"]),
    "parquet": (b"PAR1\x15\x04\x15", ["Parquet", "duckdb"]),
    "zstandard": (b"\x28\xb5\x2f\xfd\x04\x00", ["Zstandard", "zstd -d"]),
    "zip": (b"PK\x03\x04\x14\x00", ["zip", "unzip"]),
    "bzip2": (b"BZh91AY", ["bzip2", "bunzip2"]),
    "xz": (b"\xfd7zXZ\x00", ["xz", "xz -dk"]),
    "sqlite": (b"SQLite format 3\x00\x10\x00\x01", ["binary"]),
    "gzip_cut": (gzip.compress(log(S, S + 1).encode() * 400)[:-12], ["gzip", "cut off"]),
    "gzip_damaged": (b"\x1f\x8b\x08\x00" + b"\xff" * 60, ["gzip", "damaged"]),
    "all_nested_too_deeply": ("[" * 100_000, ["nested too deeply"]),
    "all_infinite": (log(S).replace(str(S), "Infinity"), ["not finite"]),
    "empty_array": ("[]", ["no record can be used"]),
    "array_of_numbers": ("[1, 2]", ["not an object"]),
    "one_object": ('{"hello": "world"}', ["no token counts"]),
    "sharegpt_lines": (
        lines({"id": "a", "conversations": [{"from": "human", "value": "hi"}]}),
        ["conversations", "neither arrival times nor token counts"],
    ),
    "chat_messages": (
        lines({"messages": [{"role": "user", "content": "hi"}]}),
        ["conversations", "neither arrival times nor token counts"],
    ),
    "trace_without_lengths": (
        lines({"timestamp": 0, "hash_ids": [1], "input_length": "x", "output_length": 2}),
        ["line 1 input_length", "token count"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_words(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, says = REFUSED[name]
    path, output = tmp_path / "given.log", tmp_path / "trace.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, told = run_import(path, output, capsys)
    assert status == ExitStatus.USAGE
    assert told.startswith(f"k3perf: {path}: ")
    assert len(told) < 900
    assert all(part in told for part in says), told
    assert not output.exists()
    with pytest.raises(UsageError, match=re.escape(str(path))):
        read_trace(path)


FOREIGN = {
    "azure.csv": (FIELD_FILES / "azure.csv").read_text(),
    "log.jsonl": log(S, S + 1),
    "log.json": json.dumps([{"created": S, **USAGE}]),
    "burst gpt.csv": (FIELD_FILES / "burstgpt.csv").read_text(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_command_that_a_refused_replay_names_works(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(FOREIGN[name])
    with pytest.raises(UsageError, match="this is not a trace but") as refused:
        read_trace(path)
    found = re.search(r"`k3perf (.*?)`", str(refused.value))
    assert found is not None
    words = shlex.split(found[1])
    assert main(words) == 0
    assert read_trace(Path(words[-1])).rows
    capsys.readouterr()


def test_a_missing_file_and_a_directory_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, says in (
        (tmp_path / "gone", "cannot be read (No such file or directory)"),
        (tmp_path, "is a directory"),
    ):
        status, told = run_import(path, tmp_path / "trace.jsonl", capsys)
        assert status == ExitStatus.USAGE
        assert says in told.replace("Is a", "is a")


def test_a_pipe_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "trace.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(log(S, S + 1),))
    writer.start()
    status, told = run_import(pipe, output, capsys)
    writer.join()
    assert status == 0, told
    assert len(read_trace(output).rows) == 2


def test_a_trace_remembers_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "trace.jsonl"
    assert run_import(FIELD_FILES / "azure.csv", output, capsys)[0] == 0
    assert "azure.csv: Azure's LLM inference trace (CSV)" in read_trace(output).origin
    plan = expand(trace_spec("trace.jsonl"), vocabulary_size=4096, trace_file=output)
    assert plan.trace is not None
    assert "imported from azure.csv" in plan.trace.text
    output.write_text(output.read_text().replace("300", "301"))
    assert read_trace(output).origin == "", "it is another trace now"
    output.with_name("trace.jsonl.source.json").write_text("[" * 100_000)
    assert read_trace(output).origin == ""


@pytest.mark.parametrize("form", ["lines", "array", "csv"])
def test_a_large_file_is_not_held_in_memory(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output, count = tmp_path / "given", tmp_path / "trace.jsonl", 2500
    padding = "x" * 4000
    with path.open("w") as file:
        if form == "csv":
            file.write("created,note,prompt_tokens,completion_tokens\n")
        for index in range(count):
            record = {
                "created": S + index,
                "note": padding,
                "prompt_tokens": 20,
                "completion_tokens": 2,
            }
            if form == "csv":
                file.write(f"{S + index},{padding},20,2\n")
            else:
                file.write(("[" if index == 0 and form == "array" else "") + json.dumps(record))
                file.write(("]" if index + 1 == count else ",") if form == "array" else "\n")
    tracemalloc.start()
    try:
        status, told = run_import(path, output, capsys)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status == 0, told
    assert len(read_trace(output).rows) == count
    assert path.stat().st_size > 10_000_000
    assert peak_bytes < 6_000_000


PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b"\n",
    b"\r",
    b"\0",
    b"null",
    b"NaN",
    b"1e999",
    b"\xff",
    b"\\u",
    b";",
    b"9" * 400,
]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_read_or_refused_and_nothing_else(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    given = [
        content
        for content, *_ in [*READ.values(), *REFUSED.values(), *TRACES.values()]
        if len(content) < 20_000
    ]
    path = tmp_path / "given"
    for _ in range(100):
        content = draw.choice(given)
        damaged = bytearray(content if isinstance(content, bytes) else content.encode())
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(damaged) + 1)
            damaged[place : place + draw.choice([0, 0, 1, 8])] = draw.choice(PIECES)
        path.write_bytes(damaged)
        for read in (lambda: list(import_log(path).rows()), lambda: read_trace(path)):
            refusals: list[str] = []
            try:
                read()
            except UsageError as refusal:
                refusals.append(str(refusal))
            assert all(str(path) in refusal for refusal in refusals), bytes(damaged)
