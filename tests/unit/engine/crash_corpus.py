"""The corpus of crash texts, and the forms in which containers, collectors and loggers
write one and the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CORPUS = Path(__file__).with_name("corpus")
CRASHES = (
    "crash_texts.yaml",
    "crash_texts_further.yaml",
    "crash_texts_more.yaml",
    "real_cpu_engine.yaml",
)

_LOGGED = re.compile(
    r"^((?:\([^)]*\) )*)(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) (\[[^]]+\])"
    r" (.*)$"
)


@cache
def crashes() -> tuple[dict[str, Any], ...]:
    """Every entry of every file."""
    return tuple(entry for name in CRASHES for entry in yaml.safe_load((CORPUS / name).read_text()))


@cache
def formats() -> tuple[dict[str, Any], ...]:
    """One crash in the forms of vLLM 0.32."""
    return tuple(yaml.safe_load((CORPUS / "log_formats.yaml").read_text())["texts"])


def lines_of(entry: dict[str, Any], *, repeated: bool = True) -> list[str]:
    """The entry's text, the line that stands many times in the real log as often as
    there.
    """
    text = entry["text"]
    lines = text.split("\n") if isinstance(text, str) else list(text)
    repeat = entry.get("repeat")
    if repeat is None or not repeated:
        return lines
    at = repeat["line"] - 1
    return lines[:at] + [lines[at]] * repeat["times"] + lines[at + 1 :]


def one_line(text: object) -> str:
    """Runs of blanks as one."""
    return " ".join(str(text).split())


def _coloured(line: str) -> str:
    match = _LOGGED.match(line)
    if match is None or not match[1]:
        return line
    process, level, time, place, said = match.groups()
    return (
        f"\x1b[0;36m{process.rstrip()}\x1b[0;0m \x1b[31m{level}\x1b[0m \x1b[90m{time}\x1b[0m"
        f" \x1b[90m{place}\x1b[0m {said}"
    )


def _as_json(lines: Sequence[str]) -> list[str]:
    """vLLM's JSON formatter: one object for each logged message, its traceback in
    ``exc_info``.
    """
    found: list[str] = []
    at = 0
    while at < len(lines):
        match = _LOGGED.match(lines[at])
        name = re.fullmatch(r"\((\S+) pid=(\d+)\) ", match[1]) if match is not None else None
        if match is None or name is None:
            found.append(lines[at])
            at += 1
            continue
        said = []
        while (
            at < len(lines)
            and (further := _LOGGED.match(lines[at])) is not None
            and further.groups()[:4] == match.groups()[:4]
        ):
            said.append(further[5])
            at += 1
        trace = next(
            (place for place, text in enumerate(said) if "Traceback (most recent" in text),
            len(said),
        )
        whole = {
            "asctime": f"2026-{match[3]},075",
            "levelname": match[2],
            "processName": "P",
            "process": int(name[2]),
        }
        whole |= {"message": "\n".join(said[:trace])} | (
            {"exc_info": "\n".join(said[trace:])} if said[trace:] else {}
        )
        found.append(json.dumps(whole | {"vllm_process_name": name[1]}))
    return found


def _each(change: Callable[[str], str]) -> Callable[[Sequence[str]], list[str]]:
    return lambda lines: [change(line) for line in lines]


def _signed(prefix: str) -> Callable[[Sequence[str]], list[str]]:
    """VLLM_LOGGING_PREFIX: before what a logger writes, not before what Python itself
    writes.
    """
    return _each(lambda line: prefix + line if _LOGGED.match(line) else line)


FORMS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "coloured": _each(_coloured),
    "json formatter": _as_json,
    "logging prefix": _signed("[k8s] "),
    "odd logging prefix": _signed("prod/eu: <k3> "),
    "docker logs -t": _each(lambda line: f"2026-11-02T10:15:01.123456789Z {line}"),
    "docker json-file": _each(
        lambda line: json.dumps(
            {"log": line + "\n", "stream": "stderr", "time": "2026-11-02T10:15:01.1Z"}
        )
    ),
    "kubelet": _each(lambda line: f"2026-11-02T10:15:01.123456789Z stderr F {line}"),
    "kubectl --prefix": _each(lambda line: f"[pod/k3-0/vllm] {line}"),
    "compose": _each(lambda line: f"k3-vllm-1  | {line}"),
    "journal": _each(lambda line: f"Nov 02 10:15:00 node7 vllm[8707]: {line}"),
    "gh run view": _each(lambda line: f"perf\tserve\t2026-11-02T10:15:01.1234567Z {line}"),
    "carriage returns": _each(lambda line: line + "\r"),
}
