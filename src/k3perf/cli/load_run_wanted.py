"""What the options of ``k3perf load run`` ask for, checked: settings and plans."""

from __future__ import annotations

import argparse
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from k3perf.errors import UsageError, shortened

if TYPE_CHECKING:
    from k3perf.config.workload_spec import ServiceLevel, WorkloadSpec
    from k3perf.load.request_form import RequestForm
    from k3perf.run.load_run import LoadPlan, LoadSettings
    from k3perf.workload.text_prompts import PromptFile

_REQUESTS_PER_SLOT: Final = 4
_FEWEST_REQUESTS: Final = 32
_DURATION_S: Final = 30.0
_MOST_LEVELS: Final = 64


class Wanted:
    """What the options ask for. Raises UsageError for options that contradict each
    other.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._check()
        self.spec = self._spec()
        self.prompt_file: PromptFile | None = None
        if arguments.prompts is not None:
            from k3perf.workload.text_prompts import read_prompts

            self.prompt_file = read_prompts(arguments.prompts)
        if arguments.rate is not None:
            self.levels: tuple[float, ...] = arguments.rate
        elif self._own_arrival:
            self.levels = (0.0,)
        else:
            self.levels = arguments.concurrency or (8,)

    @property
    def _own_arrival(self) -> bool:
        """Whether a workload file or trace paces itself."""
        given = self._arguments
        return (
            (given.workload is not None or given.trace is not None)
            and given.rate is None
            and given.concurrency is None
        )

    def _check(self) -> None:
        self._check_levels()
        self._check_prompts()
        given = self._arguments
        if (given.ttft_ms is None) != (given.tpot_ms is None):
            raise UsageError("goodput needs both --ttft-ms and --tpot-ms")
        if given.warm_up < 0:
            raise UsageError("--warm-up: give 0 or a count")

    def _check_levels(self) -> None:
        given = self._arguments
        if given.rate is not None and given.concurrency is not None:
            raise UsageError("give --rate or --concurrency, not both")
        sources = [
            option
            for option in ("workload", "trace", "prompts")
            if getattr(given, option) is not None
        ]
        if len(sources) > 1:
            raise UsageError(f"give one of {' and '.join(f'--{name}' for name in sources)}")
        if given.trace is not None and (given.rate or given.concurrency):
            raise UsageError("a trace has its own arrivals; leave --rate and --concurrency out")
        if given.duration is not None and given.rate is None:
            raise UsageError("--duration needs --rate; set --requests for a closed loop")
        if given.duration is not None and given.requests is not None:
            raise UsageError("give --duration or --requests, not both")

    def _check_prompts(self) -> None:
        given = self._arguments
        if given.prompts is not None and given.vocabulary_size is not None:
            raise UsageError("--prompts sends text; leave --vocabulary-size out")
        if given.server == "openai" and given.vocabulary_size is not None:
            raise UsageError("--server openai takes text only; leave --vocabulary-size out")
        if self.route == "chat" and given.vocabulary_size is not None:
            raise UsageError("the chat route takes text only; leave --vocabulary-size out")
        has_text = given.prompts is not None or given.prompt_template is not None
        if self.route == "completions" and not (given.vocabulary_size or has_text):
            raise UsageError(
                "--route completions needs --vocabulary-size for token ids, or --prompts for text"
            )
        if given.prompt_template is not None and self.route == "chat":
            raise UsageError("--prompt-template needs --route completions; the server fills chats")

    @cached_property
    def route(self) -> str:
        """The route's short name."""
        given = self._arguments
        chosen: str | None = given.route
        return chosen or (
            "completions" if given.vocabulary_size or given.prompt_template else "chat"
        )

    def _spec(self) -> WorkloadSpec:
        from k3perf.config.load_yaml import load_document
        from k3perf.config.workload_spec import TraceReplay, WorkloadSpec

        given = self._arguments
        if given.workload is not None:
            path = Path(given.workload)
            if path.suffix not in (".yaml", ".yml"):
                path = given.suite / "workloads" / f"{given.workload}.yaml"
            spec = load_document(WorkloadSpec, path)
            if isinstance(spec.arrival, TraceReplay) and (given.rate or given.concurrency):
                raise UsageError("a trace has its own arrivals; leave --rate and --concurrency out")
            return spec
        document: dict[str, Any] = {
            "schema_version": 1,
            "name": "load-run",
            "description": "Made from the options of k3perf load run",
            "seed": given.seed,
            "sampling": {"temperature": given.temperature or 0.0},
            "request_timeout_s": given.request_timeout,
            "stall_timeout_s": given.request_timeout,
        }
        if given.trace is not None:
            trace = given.trace.absolute()
            return WorkloadSpec.model_validate(
                document
                | {"requests": given.requests, "arrival": {"kind": "trace", "file": str(trace)}}
            )
        document |= {
            "requests": given.requests or _FEWEST_REQUESTS,
            "arrival": {"kind": "closed_loop", "concurrency": 1},
            "prompt_tokens": {"kind": "fixed", "tokens": given.input_tokens},
            "output_tokens": {"kind": "fixed", "tokens": given.output_tokens},
        }
        if given.turns > 1 and given.prompts is None:
            document["conversation"] = {
                "turns": given.turns,
                "think_time_s": given.think_time or 0.0,
            }
        return WorkloadSpec.model_validate(document)

    def settings(self) -> LoadSettings:
        """Where the levels are sent and how they are judged. Asks the server for its
        model if none is given.
        """
        from k3perf.load.served_model import served_model
        from k3perf.load.wire import Endpoint
        from k3perf.metrics.load_summary import parse_objective
        from k3perf.run.load_run import LoadSettings

        given = self._arguments
        objectives = tuple(parse_objective(text) for text in given.slo)
        base_urls = tuple(Endpoint.parse(url).base_url for url in given.base_url)
        level = self._service_level()
        if level is None and any("goodput" in bound.value_name for bound in objectives):
            raise UsageError("an objective on goodput needs --ttft-ms and --tpot-ms")
        form = self.form()
        return LoadSettings(
            base_urls=base_urls,
            model_name=given.model_name or served_model(base_urls[0], form),
            form=form,
            objectives=objectives,
            service_level=level,
            client_processes=given.client_processes,
        )

    def _service_level(self) -> ServiceLevel | None:
        from k3perf.config.workload_spec import ServiceLevel

        given = self._arguments
        if given.ttft_ms is None:
            return self.spec.service_level
        return ServiceLevel(ttft_ms=given.ttft_ms, tpot_ms=given.tpot_ms)

    def form(self) -> RequestForm:
        """How requests are written, without the texts of a level."""
        from k3perf.load.request_form import Dialect, RequestForm, Route
        from k3perf.load.wire import checked_header

        given = self._arguments
        headers = [checked_header(text) for text in given.header]
        if given.api_key_env is not None:
            key = os.environ.get(given.api_key_env, "").strip()
            if not key:
                raise UsageError(f"--api-key-env {given.api_key_env}: the variable is not set")
            headers.append(checked_header(f"Authorization: Bearer {key}"))
        exact = given.server == "vllm" and not given.natural_end and given.json_schema is None
        return RequestForm(
            route=Route.CHAT if self.route == "chat" else Route.COMPLETIONS,
            dialect=Dialect(given.server),
            exact_output=exact,
            headers=tuple(headers),
            prompt_template=_text_of(given.prompt_template, "--prompt-template"),
            extra_body=_extra_body(given.extra_body, given.json_schema),
            expects_json=given.json_schema is not None,
            verify_tls=not given.insecure,
            tls_ca_file=given.tls_ca_file or "",
        )

    def plan(self, level: float, position: int) -> LoadPlan:
        """The plan of one level. Each level has other prompts."""
        from k3perf.run.load_run import LoadPlan
        from k3perf.workload.load_plan import plan_of_prompts, with_arrival
        from k3perf.workload.request_plan import expand

        given = self._arguments
        spec = self.spec
        kind = "workload"
        if not self._own_arrival:
            kind = "rate_per_s" if given.rate is not None else "concurrency"
            arrival = (
                {"kind": given.arrival, "rate_per_s": level}
                if given.rate is not None
                else {"kind": "closed_loop", "concurrency": int(level)}
            )
            spec = with_arrival(spec, arrival, self._request_count(level))
        if self.prompt_file is not None:
            plan, texts = plan_of_prompts(
                spec,
                self.prompt_file,
                first_conversation=position * (spec.requests or 0),
                longest_output_tokens=given.output_tokens,
                think_time_s=given.think_time or 0.0,
            )
            return LoadPlan(level, kind, plan, texts)  # type: ignore[arg-type]
        whole = expand(spec, vocabulary_size=given.vocabulary_size or 1 << 16)
        return LoadPlan(level, kind, whole.for_round(position))  # type: ignore[arg-type]

    def warm_up_plan(self, round_index: int) -> LoadPlan | None:
        """A few requests like those of the first level, or None."""
        from dataclasses import replace

        given = self._arguments
        if not given.warm_up:
            return None
        first = self.plan(self.levels[0], 0)
        firsts = [request for request in first.plan.requests if request.previous_index is None]
        chosen = tuple(replace(request, offset_ns=None) for request in firsts[: given.warm_up])
        plan = replace(first.plan, requests=chosen, concurrency=len(chosen))
        return replace(first, plan=plan.for_round(round_index))

    def _request_count(self, level: float) -> int:
        given = self._arguments
        if given.requests is not None:
            return int(given.requests)
        if given.rate is not None:
            return max(int(level * (given.duration or _DURATION_S)), 1)
        return max(_FEWEST_REQUESTS, _REQUESTS_PER_SLOT * int(level))

    def prompts_text(self) -> str:
        """Where the prompts come from."""
        given = self._arguments
        if self.prompt_file is not None:
            return (
                f"{self.prompt_file.path}, SHA-256 {self.prompt_file.sha256},"
                f" {len(self.prompt_file.conversations)} conversations,"
                f" {self.prompt_file.omitted_count} records without a prompt"
            )
        if given.trace is not None:
            return f"trace {given.trace}"
        return "random token ids" if given.vocabulary_size else "random words"

    def options_text(self) -> dict[str, str]:
        """The options as given, without secrets."""
        hidden = ("run", "header", "api_key_env", "command", "load_command")
        return {
            name: shortened(str(value))
            for name, value in vars(self._arguments).items()
            if name not in hidden and value not in (None, [], False)
        }


def _text_of(path: Path | None, option: str) -> str:
    if path is None:
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{option} {path}: {reason}. Give a text file.") from None
    if not text.strip():
        raise UsageError(f"{option} {path}: the file is empty")
    return text


def _extra_body(text: str | None, schema_path: Path | None) -> bytes:
    import orjson

    extra: Any = {}
    if text is not None:
        try:
            extra = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise UsageError(
                f"--extra-body {shortened(text)!r}: not valid JSON ({error})"
            ) from None
        if not isinstance(extra, dict):
            raise UsageError(f"--extra-body {shortened(text)!r}: give a JSON object")
        for key in ("stream", "model", "messages", "prompt"):
            if key in extra:
                raise UsageError(f"--extra-body: k3perf sets {key!r}; remove the key")
    if schema_path is not None:
        try:
            schema = orjson.loads(_text_of(schema_path, "--json-schema"))
        except orjson.JSONDecodeError as error:
            raise UsageError(f"--json-schema {schema_path}: not valid JSON ({error})") from None
        extra["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema},
        }
    return orjson.dumps(extra)
