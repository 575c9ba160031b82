"""The fault matrix: every fault, where it strikes, how it is injected, what must come
of it. One row per fault; the tests and the table in docs/supervision.md are made from the
same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3perf.errors import ExitStatus
from k3perf.records.outcome import Outcome


class Kind(StrEnum):
    """Which test module injects the fault."""

    START = "start"  # the engine never gets ready (or does, in spite of it)
    SERVICE = "service"  # the engine is ready, then dies
    STOP = "stop"  # the engine's end
    HARNESS = "harness"  # something happens to pytest itself
    MACHINE = "machine"  # pre-flight and locks
    ROUND = "round"  # a spoiled round
    STORE = "store"  # the results file
    SUITE = "suite"  # a whole `pytest perf_tests` run
    REAL = "real"  # vLLM's own CPU engine


@dataclass(frozen=True, slots=True)
class Fault:
    """``outcome`` None: the run is not spoiled by it (PASS stays possible). ``shows``
    is a pattern that the message must match.
    """

    name: str
    kind: Kind
    stage: str
    injection: str
    outcome: Outcome | None
    exit_status: ExitStatus | None  # None: pytest was killed and has none
    shows: str = ""
    flags: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The outcome in the table's words."""
        if self.exit_status is ExitStatus.INTERRUPTED:
            return "interrupted"
        if self.exit_status is None:
            return "ended by itself"
        return "not spoiled" if self.outcome is None else self.outcome.value


def _invalid(name: str, kind: Kind, stage: str, injection: str, shows: str, *flags: str) -> Fault:
    return Fault(name, kind, stage, injection, Outcome.INVALID, ExitStatus.INVALID, shows, flags)


def _hung(name: str, stage: str, injection: str, flag: str) -> Fault:
    return _invalid(
        name, Kind.START, stage, injection, f"engine hung in stage {stage}: no progress", flag
    )


def _harmless(name: str, kind: Kind, stage: str, injection: str, shows: str, *flags: str) -> Fault:
    return Fault(name, kind, stage, injection, None, ExitStatus.OK, shows, flags)


def _interrupted(name: str, stage: str, injection: str, *flags: str) -> Fault:
    return Fault(name, Kind.HARNESS, stage, injection, None, ExitStatus.INTERRUPTED, "", flags)


def _dies(stage: str, process: str, where: str) -> Fault:
    text = f"root cause: RuntimeError: injected death in {process} at {stage}"
    return _invalid(
        f"dies_at_{stage}",
        Kind.START,
        stage,
        f"{where} raises and exits",
        text,
        f"die:{stage}:{process}",
    )


def _hangs(stage: str, where: str) -> Fault:
    return _invalid(
        f"hangs_at_{stage}",
        Kind.START,
        stage,
        f"{where} sleeps forever",
        f"engine hung in stage {stage}: no progress",
        f"hang:{stage}",
    )


_START = (
    _dies("import", "api", "the API server"),
    _dies("load", "worker", "the worker"),
    _dies("profile", "worker", "the worker"),
    _dies("compile", "worker", "the worker"),
    _dies("capture", "worker", "the worker"),
    _dies("ready", "core", "EngineCore"),
    _invalid(
        "killed_at_load",
        Kind.START,
        "load",
        "the worker gets SIGKILL",
        "WorkerProc initialization failed",
        "killed:load",
    ),
    _invalid(
        "segfault_at_capture",
        Kind.START,
        "capture",
        "the worker gets SIGSEGV",
        "engine ended in stage capture",
        "segfault:capture",
    ),
    _invalid(
        "core_killed_at_ready",
        Kind.START,
        "ready",
        "EngineCore gets SIGKILL",
        "killed by SIGKILL .often the kernel's out-of-memory",
        "slow_death:ready",
    ),
    _invalid(
        "dies_with_shared_memory",
        Kind.START,
        "capture",
        "the worker makes shared memory, then raises",
        "injected death in worker at capture",
        "shared_memory",
        "die:capture:worker",
    ),
    _hangs("import", "the API server"),
    _hangs("load", "the worker"),
    _hangs("profile", "the worker"),
    _hangs("compile", "the worker"),
    _hangs("capture", "the worker"),
    _hangs("ready", "EngineCore"),
    _hung(
        "heartbeats_only", "load", "the worker hangs, the log grows by heartbeats", "heartbeat:load"
    ),
    _invalid(
        "never_listens",
        Kind.START,
        "ready",
        "the API server binds and never listens",
        "engine hung in stage ready",
        "hang_before_listen",
    ),
    _hung("never_healthy", "ready", "/health answers 503", "unhealthy"),
    _invalid(
        "serves_another_model",
        Kind.START,
        "ready",
        "/v1/models lists another name",
        "serves other, not",
        "wrong_model:other",
    ),
    _invalid(
        "no_executable",
        Kind.START,
        "spawn",
        "argv names a missing file",
        "could not be started",
    ),
    _hung(
        "waiting_compiler",
        "profile",
        "the worker waits for a compiler that does nothing",
        "silent_waits:profile",
    ),
    _harmless(
        "silent_compile",
        Kind.START,
        "profile",
        "a compiler works past the deadline, without a line in the log",
        "",
        "silent_compiles:profile",
    ),
    _harmless(
        "silent_cache",
        Kind.START,
        "profile",
        "a cache grows past the deadline, without a line in the log",
        "",
        "silent_grows:profile",
    ),
    _harmless(
        "no_stage_lines",
        Kind.START,
        "load",
        "the log holds errors alone, loading takes longer than the import's deadline",
        "",
        "mute",
        "silent:load",
    ),
    _harmless(
        "slow_but_moving",
        Kind.START,
        "load",
        "loading takes longer than its deadline, with progress in the log",
        "",
        "slow:load",
    ),
    _harmless(
        "port_in_use_once",
        Kind.START,
        "import",
        "the first bind fails with EADDRINUSE",
        "",
        "port_taken:{work}/once",
    ),
    _harmless(
        "port_stolen_once",
        Kind.START,
        "import",
        "another program listens on the reserved port, the next one is free",
        "",
    ),
    _invalid(
        "port_stolen_always",
        Kind.START,
        "import",
        "another program listens on every reserved port",
        "no free port after",
    ),
)


def _dead(name: str, injection: str, shows: str, *flags: str) -> Fault:
    return _invalid(name, Kind.SERVICE, "serving", injection, shows, *flags)


_SERVICE = (
    _dead(
        "worker_dies_late",
        "the worker raises after ready",
        "injected death in worker at serving",
        "die_late:{work}/now",
    ),
    _dead(
        "api_server_dies_late",
        "the API server exits 7",
        "ended with exit status 7",
        "api_dies_late:{work}/now",
        "orphans",
    ),
    _dead("worker_killed", "SIGKILL to the worker", "VLLM::Worker"),
    _dead("core_killed", "SIGKILL to EngineCore", "VLLM::EngineCore"),
    _dead(
        "api_server_killed",
        "SIGKILL to the API server; its children live on",
        "signal SIGKILL",
        "orphans",
    ),
    _dead(
        "worker_dead_core_alive",
        "SIGKILL to the worker, the rest serves on",
        "VLLM::Worker",
        "core_survives_worker",
    ),
    _dead(
        "dies_mid_stream",
        "the API server exits while it streams",
        "ended with exit status 9",
        "die_mid_stream",
    ),
    _dead(
        "out_of_memory",
        "the worker outgrows its memory cgroup",
        "out-of-memory killer",
        "eat_memory:{work}/now",
    ),
)

_STOP = (
    _harmless(
        "ignores_sigterm", Kind.STOP, "stop", "every process ignores SIGTERM", "", "ignore_sigterm"
    ),
    _harmless(
        "leaves_orphans",
        Kind.STOP,
        "stop",
        "the API server exits on SIGTERM and leaves its children",
        "",
        "orphans",
    ),
    _harmless(
        "process_escapes",
        Kind.STOP,
        "stop",
        "a process with a separate session, no parent and no mark",
        "",
        "escape",
    ),
    _harmless(
        "shared_memory_left",
        Kind.STOP,
        "stop",
        "SIGKILL leaves a file in /dev/shm",
        "",
        "shared_memory",
        "ignore_sigterm",
    ),
    _harmless("frozen_at_stop", Kind.STOP, "stop", "the whole tree is stopped by SIGSTOP", ""),
    _harmless(
        "dead_before_stop",
        Kind.STOP,
        "stop",
        "SIGKILL to the API server just before",
        "",
        "orphans",
    ),
    _invalid(
        "device_memory_kept",
        Kind.STOP,
        "stop",
        "the device's used memory stays up after the end",
        "device memory was not freed",
    ),
)

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_HARNESS = (
    *(
        _interrupted(
            f"{number.lower()}_at_{stage}",
            stage,
            f"{number} to pytest",
            *(() if stage == "serving" else (f"hang:{stage}",)),
        )
        for number in _SIGNALS
        for stage in ("import", "load", "profile", "compile", "capture", "ready", "serving")
    ),
    _interrupted(
        "sigint_with_shared_memory",
        "ready",
        "SIGINT to pytest while the workers hold shared memory",
        "shared_memory",
        "hang:ready",
    ),
    _interrupted(
        "sigint_twice_in_stop",
        "stop",
        "SIGINT, and again while an engine that ignores SIGTERM is ended",
        "ignore_sigterm",
    ),
    Fault(
        "sigkill_at_load", Kind.HARNESS, "load", "SIGKILL to pytest", None, None, "", ("hang:load",)
    ),
    Fault(
        "sigkill_at_serving",
        Kind.HARNESS,
        "serving",
        "SIGKILL to pytest",
        None,
        None,
        "",
        ("shared_memory", "orphans"),
    ),
    Fault(
        "sigkill_of_the_group",
        Kind.HARNESS,
        "serving",
        "SIGKILL to pytest's process group",
        None,
        None,
        "",
    ),
)


def _machine(name: str, injection: str, shows: str) -> Fault:
    return _invalid(name, Kind.MACHINE, "pre-flight", injection, shows)


_MACHINE = (
    _machine(
        "second_suite", "another process holds the device's lock", "in use by another suite: pid"
    ),
    _harmless(
        "stale_lock", Kind.MACHINE, "pre-flight", "the lock file names a pid that is gone", ""
    ),
    _harmless(
        "reused_pid_in_lock",
        Kind.MACHINE,
        "pre-flight",
        "the lock file names a pid that another process has now",
        "",
    ),
    _machine(
        "memory_held",
        "another process holds the memory past the deadline",
        "pid 4242 .train.py. holds 60.0 GiB",
    ),
    _harmless(
        "memory_given_back_late",
        Kind.MACHINE,
        "pre-flight",
        "memory becomes free before the deadline",
        "",
    ),
    _machine("no_nvml", "NVML cannot be loaded", "NVML is unavailable"),
    _machine("device_silent", "a device does not answer NVML", "does not answer NVML"),
    _machine(
        "device_refused",
        "the driver refuses a device's memory to this process",
        "memory: Insufficient Permissions",
    ),
    _harmless(
        "device_without_memory_info",
        Kind.MACHINE,
        "pre-flight",
        "a device does not report its memory, and the target needs no figure",
        "",
    ),
    _machine("wrong_class", "another device than the target's", "NVIDIA L4"),
    _machine("too_few_devices", "one device, the target needs two", "1 found, needed 2"),
    _machine("old_driver", "a driver below the target's minimum", "driver: 550.1, needed 580"),
    _machine(
        "sick_memory",
        "an uncorrected ECC error, a row remapping pending",
        "uncorrected ECC errors 3",
    ),
    _machine(
        "foreign_process", "another process computes on the device", "processes: 1, needed none"
    ),
    _machine("disk_full_before", "less free disk than a run needs", "disk: 1.0 MiB free"),
    _machine("results_read_only", "the results directory cannot be written", "is read-only"),
    _machine(
        "no_such_processor",
        "the target pins to a CPU that does not exist",
        r"CPU 97 \(from the target's `pinning`\)",
    ),
    _machine("no_engine_python", "--k3-engine-python names no executable", "engine python: "),
)


def _round(name: str, injection: str, rule: str) -> Fault:
    return _invalid(name, Kind.ROUND, "mid-round", injection, rule)


_ROUND = (
    _round("requests_fail", "one request ends with a reset connection", "failed_requests"),
    _round("answers_short", "one answer has fewer tokens than asked for", "wrong_length"),
    _round("no_answer_at_all", "the round has no request", "no_requests"),
    _round("engine_dies_mid_round", "the engine dies inside the window", "engine_died"),
    _round("engine_restarts", "an engine process was restarted", "engine_restarted"),
    _round(
        "compile_in_window",
        "the log reports a kernel compiled inside the window",
        "compile_in_window",
    ),
    _round(
        "compile_on_disk_alone",
        "a compiler leaves a kernel in its cache and no line in the log",
        "compile_in_window",
    ),
    _round(
        "compile_monitor_silent",
        "the JIT monitor's greeting is not in the log",
        "compile_in_window",
    ),
    _round(
        "server_counts_nothing",
        "/metrics lacks the counters that a round is checked against",
        "server_counters",
    ),
    _round("preempted", "the server counts preemptions", "preemptions"),
    _round("client_late", "the load generator lags 40 ms", "client_lag_p99_ms"),
    _round(
        "client_late_for_short_ttft",
        "the load generator lags 15 ms where TTFT is 50 ms",
        "client_lag_share_ratio",
    ),
    _round("clocks_disagree", "the client's TTFT is twice the server's", "ttft_disagreement_ratio"),
    _round(
        "strangers_traffic",
        "the server made more tokens than came back",
        "token_disagreement_ratio",
    ),
    _round("throttled", "NVML reports a hardware thermal slowdown", "harmful_throttle_bits"),
    _round("clock_low", "the SM clock falls under the target's limit", "sm_clock_min_mhz"),
    _round("too_hot", "95 degrees", "temperature_max_c"),
    _round("ecc_error_in_round", "an uncorrected ECC error inside the window", "ecc_errors_count"),
    _round("driver_loaded_again", "the ECC counter falls inside the window", "ecc_errors_count"),
    _round("nvml_lost", "NVML stops answering mid-run", "harmful_throttle_bits"),
    _round(
        "process_joins_device",
        "another process appears on the device",
        "foreign_device_processes_count",
    ),
    _round("cpu_stolen", "the hypervisor takes 10 % of the time", "steal_ratio"),
    _round("cpu_used_by_others", "other processes use half a CPU", "foreign_cpu_ratio"),
    _round("memory_short", "tasks wait a tenth of the time for memory", "psi_memory_some_ratio"),
    _round("swapped", "memory is swapped out", "swap_used_bytes"),
    _round("clock_jumps", "the wall clock jumps by two seconds", "clock_jump_ms"),
    _round(
        "spread_too_wide",
        "rounds vary fifty times as much as the baseline's",
        "spread_over_noise_ratio",
    ),
)


def _store(name: str, injection: str, shows: str) -> Fault:
    return _invalid(name, Kind.STORE, "recording", injection, shows)


_STORE = (
    _store("disk_full", "the file system of the results fills up", "No space left on device"),
    _store(
        "results_directory_blocked",
        "a file is where the directory should be",
        "results cannot be written",
    ),
    _harmless(
        "killed_in_a_line",
        Kind.STORE,
        "recording",
        "SIGKILL to pytest in the middle of a record",
        "",
    ),
    _harmless(
        "killed_in_a_replacement",
        Kind.STORE,
        "recording",
        "SIGKILL while a baseline file is replaced",
        "",
    ),
)


def _suite(name: str, stage: str, injection: str, shows: str, *flags: str) -> Fault:
    return _invalid(f"suite_{name}", Kind.SUITE, stage, injection, shows, *flags)


def _suite_interrupted(signal: str, stage: str, *flags: str) -> Fault:
    return Fault(
        f"suite_{signal.lower()}_at_{stage}",
        Kind.SUITE,
        stage,
        f"{signal} to `pytest perf_tests`",
        None,
        ExitStatus.INTERRUPTED,
        "",
        flags,
    )


_SUITE = (
    _suite(
        "engine_dies_mid_round",
        "mid-round",
        "the API server exits while it streams",
        "engine died in service",
        "die_mid_stream",
    ),
    _suite(
        "answers_errors",
        "mid-round",
        "/health answers, completions are status 500",
        "failed_requests",
        "no_completions",
    ),
    _suite(
        "streams_stall",
        "mid-round",
        "every stream stops half-way",
        "failed_requests",
        "stall_mid_stream",
    ),
    _suite(
        "answers_short", "mid-round", "every answer lacks a token", "wrong_length", "answers_short"
    ),
    _suite(
        "counts_nothing", "mid-round", "/metrics is an empty page", "server_counters", "no_counters"
    ),
    _suite(
        "metrics_endless",
        "mid-round",
        "/metrics never ends",
        "GET /metrics.*larger than 64 MiB",
        "endless_metrics",
    ),
    _suite("preempted", "mid-round", "the server counts preemptions", "preemptions", "preempts"),
    _suite(
        "compiles",
        "mid-round",
        "the log reports a compile in every round",
        "compile_in_window",
        "compile_in_service",
    ),
    _suite(
        "compiles_in_silence",
        "mid-round",
        "every round leaves a kernel in a compiler's cache, and no line",
        "kernels were compiled inside the window: 1 kernels.*new in: /x/deep_gemm",
        "leaves_kernels",
    ),
    _suite(
        "dies_at_load",
        "load",
        "the worker raises, at both tries",
        "injected death in worker at load",
        "die:load:worker",
    ),
    _suite(
        "hangs_at_load",
        "load",
        "the worker hangs, at both tries",
        "engine hung in stage load",
        "hang:load",
    ),
    _suite(
        "one_config_crashes",
        "load",
        "one config's worker raises; the other config is judged",
        "injected death in worker at load",
        "die_with:block-size",
    ),
    _suite("results_read_only", "pre-flight", "--k3-results cannot be written", "is read-only"),
    _suite(
        "second_suite", "pre-flight", "another suite holds the device", "in use by another suite"
    ),
    *(_suite_interrupted(signal, "load", "hang:load") for signal in _SIGNALS),
    *(_suite_interrupted(signal, "serving", "stall_mid_stream") for signal in _SIGNALS),
    Fault(
        "suite_killed_and_resumed",
        Kind.SUITE,
        "serving",
        "SIGKILL to pytest mid-round, then --k3-resume",
        None,
        ExitStatus.OK,
    ),
)


def _real(name: str, stage: str, injection: str, shows: str) -> Fault:
    return _invalid(f"real_{name}", Kind.REAL, stage, f"vLLM's CPU engine: {injection}", shows)


_REAL = (
    _real(
        "no_weights",
        "load",
        "the model directory holds no weights",
        "root cause: .*[Cc]annot find any model weights",
    ),
    _real(
        "model_cut_off", "import", "config.json ends in the middle", "engine ended in stage import"
    ),
    _real(
        "worker_killed_at_load",
        "load",
        "SIGKILL to the worker while it loads",
        "logged no error: killed by SIGKILL",
    ),
    _real(
        "hangs_at_load",
        "load",
        "EngineCore is stopped by SIGSTOP while it loads",
        "engine hung in stage load: no progress",
    ),
    _real(
        "core_killed_mid_round",
        "mid-round",
        "SIGKILL to EngineCore while requests stream",
        "VLLM::EngineCore",
    ),
    _real(
        "out_of_memory", "serving", "the worker outgrows its memory cgroup", "out-of-memory killer"
    ),
    _harmless(
        "real_port_stolen",
        Kind.REAL,
        "import",
        "vLLM's CPU engine: another program listens on the reserved port",
        "",
    ),
    _real(
        "suite_core_killed",
        "mid-round",
        "SIGKILL to EngineCore in a round of `pytest perf_tests`",
        "engine died in service",
    ),
)

FAULTS: tuple[Fault, ...] = (
    *_START,
    *_SERVICE,
    *_STOP,
    *_HARNESS,
    *_MACHINE,
    *_ROUND,
    *_STORE,
    *_SUITE,
    *_REAL,
)


def of(kind: Kind) -> list[Fault]:
    """The rows of one kind."""
    return [fault for fault in FAULTS if fault.kind is kind]
