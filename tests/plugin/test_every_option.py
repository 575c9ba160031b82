"""Every documented option, and everything else that a suite's own code can do, with a
run that passes, one that regresses and one that is INVALID: the exit status is the
documented one, and nothing ends in a traceback.

Runs that pass and regress are judged from results that were made up (``--k3-resume``);
only an INVALID run asks for an engine.
"""

import shutil
from dataclasses import dataclass, field

import pytest
import yaml
from tests.plugin.made_results import write_results
from tests.plugin.sites import IMPORTED, TARGET, Site

from k3perf.errors import ExitStatus
from k3perf.pytest_plugin.options import FLAGS, REPEATED, VALUES

OUTCOMES = ("PASS", "REGRESSED", "INVALID")
JUDGED = (0, 1, 10)
USAGE = (4, 4, 4)


@dataclass(frozen=True)
class Row:
    """Arguments, and the status for each outcome. ``files``: what lies in the suite's
    folder beside its own. ``base``: whether the run is given the measured results.
    """

    name: str
    arguments: tuple[str, ...] = ()
    statuses: tuple[int, int, int] = JUDGED
    files: dict[str, str] = field(default_factory=dict)
    base: bool = True
    traceback: bool = False


def row(text: str, statuses: tuple[int, int, int] = JUDGED, **given) -> Row:
    return Row(
        text, tuple(text.split("|")) if "|" in text else tuple(text.split()), statuses, **given
    )


OWN_OPTIONS = [
    row(
        "--k3-strict --k3-plain --k3-suite perf_tests --k3-baselines baselines --k3-mode reference"
        " --k3-target tiny"
    ),
    row("--k3-sessions 2 --k3-gated-metric-count 2 --k3-quiet-wait 1"),
    row(
        "--k3-cells cells.json --k3-trace trace.json",
        files={"../cells.json": '["tiny-fp8_kv-quick"]', "../trace.json": "{}"},
    ),
    row("--k3-suite nowhere", USAGE),
    row("--k3-suite pytest.ini", USAGE),
    row("--k3-baselines nowhere", (11, 11, 11)),
    row("--k3-baselines pytest.ini", USAGE),
    row("--k3-results pytest.ini", (10, 10, 10), base=False),
    row("--k3-engine-python nowhere", USAGE),
    row("--k3-engine-python baselines", USAGE),
    row("--k3-mode sideways", USAGE),
    row("--k3-mode ab", USAGE),
    row("--k3-ab-base nowhere", USAGE, base=False),
    row("--k3-judge-from ."),
    row("--k3-judge-from nowhere", USAGE),
    row("--k3-sessions none", USAGE),
    row("--k3-sessions 0", USAGE),
    row("--k3-cells nowhere.json", USAGE),
    row("--k3-cells baselines", USAGE),
    row("--k3-cells cells.json", USAGE, files={"../cells.json": "[" * 5000}),
    row("--k3-cells cells.json", USAGE, files={"../cells.json": '["tiny-fp8_kv-quikc"]'}),
    row("--k3-gated-metric-count -1", USAGE),
    row("--k3-trace nowhere", USAGE),
    row("--k3-target tyni", USAGE),
    row("--k3-inject slow_step_percent=250", (4, 4, 10)),
    row("--k3-inject slow_step_percent=none", USAGE),
    row("--k3-inject both:slow_step_percent=none", USAGE),
    row("--k3-inject quick_step_percent=5", USAGE),
    row("--k3-resume", USAGE, base=False),
    row("--k3-resume --k3-results nowhere", USAGE, base=False),
    row("--k3-record --k3-resume --k3-results x", USAGE, base=False),
    row("--k3-record --k3-results new --k3-sessions 1 --k3-quiet-wait 0", (0, 0, 10), base=False),
    row("--k3-quiet-wait soon", USAGE),
    row("--k3-record-minutes 1"),
    row("--k3-record-minutes soon", USAGE),
    row("--k3-record-minutes -1", USAGE),
    row("--k3-server ftp://127.0.0.1:9", USAGE),
    row("--k3-server http://127.0.0.1:9 --k3-inject slow_step_percent=5", USAGE),
    row("--k3-record-within 5", USAGE),
    row("--k3-candidates"),
    row("--k3-nosuch", USAGE),
]
# options that have nothing to do with each other share a run
OF_PYTEST = [
    row("-m latency"),
    row("-m memory -rA", (0, 0, 10)),
    row("-m configuration -s", (0, 0, 10)),
    row("-m trace", (5, 5, 5)),
    row("-k nosuch", (5, 5, 5)),
    row("-k|(", USAGE),
    row("--collect-only", (0, 0, 0)),
    row("-x --ff -v"),
    row("--maxfail 1 --lf -q -q"),
    row("--sw --tb no --no-summary"),
    row("-W error --deselect perf_tests/test_throughput.py --junitxml out.xml"),
    row("-p no:benchmark", USAGE),
    row("-p no:warnings --benchmark-save one"),
    row("--junitxml baselines", USAGE),
    row("--junitxml pytest.ini/out.xml", (4, 1, 4)),
    row("--benchmark-json out.json -W error"),
    row("--benchmark-json out.json -m latency -W error"),
    row("--benchmark-json out.json --collect-only -W error", (0, 0, 0)),
    row("--benchmark-json nowhere/out.json", USAGE),
    row("--benchmark-json baselines", USAGE),
    row("--benchmark-storage file://kept --benchmark-autosave"),
    row("--benchmark-storage file://pytest.ini --benchmark-autosave", USAGE),
    row("--benchmark-storage http://x", USAGE),
    row("--benchmark-storage elasticsearch+http://x/index/type", USAGE),
    row("--benchmark-autosave -m latency -W error"),
    row("--benchmark-skip"),
    row("--benchmark-only"),
    row("--benchmark-disable"),
    row("--benchmark-compare-fail mean:5%", USAGE),
    row("--setup-plan", (0, 0, 0)),
    row("--fixtures", (0, 0, 0)),
    row("--markers", (0, 0, 0)),
    row("--help", (0, 0, 0)),
    row(
        "-n 2",
        USAGE,
        files={
            "../conftest.py": (
                "def pytest_addoption(parser):\n    parser.getgroup('workers')._addoption('-n',"
                " dest='numprocesses')\n"
            )
        },
    ),
    row("perf_tests/nosuch.py", USAGE),
    row("perf_tests/test_latency.py::nosuch", USAGE),
]

CHECKED = "from k3perf.records.metric_definitions import Family\n"
RAISED = "import pytest\nfrom k3perf.errors import *\n"


def own_test(body: str, head: str = RAISED) -> dict[str, str]:
    """A module of the suite that runs after the others, since it takes a cell too."""
    return {"test_zz_own.py": f"{head}\n\ndef test_own(cell):\n    {body}\n"}


def conftest(text: str) -> dict[str, str]:
    return {"conftest.py": f"{RAISED}\n\n{text}\n"}


SUITE_CODE = [
    Row("a test fails", statuses=(3, 1, 3), files=own_test("assert cell is None")),
    Row(
        "a test fails before any cell",
        statuses=(3, 1, 3),
        files={"test_own.py": "def test_own():\n    assert 1 == 2\n"},
    ),
    Row("a test exits", statuses=(3, 1, 3), files=own_test("raise SystemExit(1)")),
    Row(
        "a test ends pytest with 1",
        statuses=(3, 1, 10),
        files=own_test("pytest.exit('enough', returncode=1)"),
    ),
    Row("a test ends pytest", statuses=(2, 1, 2), files=own_test("pytest.exit('enough')")),
    Row(
        "a test is interrupted",
        statuses=(2, 1, 2),
        files=own_test("import os, signal; os.kill(os.getpid(), signal.SIGINT)"),
    ),
    Row(
        "a test is terminated",
        statuses=(2, 1, 2),
        files=own_test("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    ),
    Row(
        "a test passes that must not",
        statuses=(3, 1, 3),
        files={
            "test_zz.py": (
                "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_own(cell):\n    pass\n"
            )
        },
    ),
    Row(
        "a test fails as expected",
        files={
            "test_zz.py": (
                "import pytest\n@pytest.mark.xfail\ndef test_own(cell):\n    assert 1 == 2\n"
            )
        },
    ),
    Row(
        "wrong use in a test",
        statuses=(4, 1, 4),
        files=own_test("raise UsageError('no such thing')"),
    ),
    Row(
        "an unfit machine in a test",
        statuses=(10, 1, 10),
        files=own_test("raise PreflightError('no such thing')"),
    ),
    Row(
        "an error that claims a regression",
        statuses=(3, 1, 3),
        files=own_test(
            "raise Own('x')",
            RAISED + "class Own(K3PerfError):\n    exit_status = ExitStatus.REGRESSED\n",
        ),
    ),
    Row(
        "the root of all errors",
        statuses=(3, 1, 3),
        files=own_test("raise K3PerfError('no such thing')"),
    ),
    Row(
        "an error in a fixture",
        statuses=(10, 1, 10),
        files={
            "test_zz.py": (
                f"{RAISED}\n@pytest.fixture\ndef own():\n    raise EngineError('gone')\ndef"
                " test_own(cell, own):\n    pass\n"
            )
        },
    ),
    Row(
        "an error in a fixture's end",
        statuses=(10, 1, 10),
        files={
            "test_zz.py": (
                f"{RAISED}\n@pytest.fixture\ndef own():\n    yield\n    raise"
                " EngineError('gone')\ndef test_own(cell, own):\n    pass\n"
            )
        },
    ),
    Row(
        "an error in the session's end",
        statuses=(3, 1, 3),
        files=conftest(
            "@pytest.fixture(scope='session', autouse=True)\ndef own():\n    yield\n    assert 1"
            " == 2"
        ),
    ),
    Row(
        "a module that cannot be imported",
        statuses=USAGE,
        files={"test_zz.py": "import nosuchmodule\n"},
        traceback=True,
    ),
    Row(
        "a module with an error of the suite",
        statuses=(10, 10, 10),
        files={"test_zz.py": f"{RAISED}\nraise PreflightError('not here')\n"},
    ),
    Row(
        "a broken module, the others collected",
        ("--continue-on-collection-errors",),
        (4, 1, 4),
        files={"test_zz.py": "import nosuchmodule\n"},
        traceback=True,
    ),
    Row("a broken conftest", statuses=USAGE, files=conftest("1 / 0")),
    Row(
        "a broken hook at the start",
        statuses=(3, 3, 3),
        files=conftest("def pytest_collection_modifyitems():\n    1 / 0"),
        traceback=True,
    ),
    Row(
        "a hook that finds the machine unfit",
        statuses=(10, 10, 10),
        files=conftest("def pytest_collection_modifyitems():\n    raise PreflightError('x')"),
        traceback=True,
    ),
    Row(
        "a broken hook in a test",
        statuses=(3, 3, 3),
        files=conftest("def pytest_runtest_teardown(item):\n    1 / 0"),
    ),
    Row(
        "a broken hook between tests",
        statuses=(3, 3, 3),
        files=conftest("def pytest_runtest_protocol():\n    1 / 0"),
        traceback=True,
    ),
    Row(
        "a broken hook at the end",
        statuses=(3, 1, 3),
        files=conftest("def pytest_sessionfinish():\n    1 / 0"),
    ),
    Row(
        "a summary that cannot be written",
        statuses=(3, 1, 3),
        files=conftest("def pytest_terminal_summary():\n    1 / 0"),
    ),
    Row(
        "a broken hook after all",
        statuses=(3, 1, 3),
        files=conftest("def pytest_unconfigure():\n    1 / 0"),
    ),
    Row(
        "an interrupt at the end",
        statuses=(2, 1, 2),
        files=conftest("def pytest_sessionfinish():\n    raise KeyboardInterrupt"),
    ),
    Row(
        "a plugin that counts failures",
        statuses=(3, 1, 10),
        files=conftest("def pytest_sessionfinish(session):\n    session.exitstatus = 1"),
    ),
]
ROWS = [*OWN_OPTIONS, *OF_PYTEST, *SUITE_CODE]


@pytest.fixture(scope="module")
def measured(tmp_path_factory, repository, forks) -> dict[str, Site]:
    """A site for each outcome, with a baseline; ``measured`` in it holds the results to
    be judged, but for the INVALID one, which asks for a processor that no machine has.
    """
    sites = {
        name: Site(tmp_path_factory.mktemp(name.lower()), repository, forks) for name in OUTCOMES
    }
    for name, site in sites.items():
        asked = {"pinning": {"worker_cpus": [4095]}} if name == "INVALID" else {}
        (site.root / "perf_tests" / "targets" / "tiny.yaml").write_text(
            yaml.safe_dump({**TARGET, "configs": ["fp8_kv"], **asked})
        )
    record_baseline(sites["PASS"])
    for site in list(sites.values())[1:]:
        shutil.copytree(sites["PASS"].root / "baselines", site.root / "baselines")
    for name, slower in (("PASS", 1.0), ("REGRESSED", 3.0)):
        site = sites[name]
        experiment = {
            "commit": "unknown",
            "engine_python": str(site.python),
            "injected": "",
            "ab_base": "",
        }
        write_results(
            site.root / "measured" / "results.jsonl",
            site.root / "perf_tests",
            sessions=2,
            slower=slower,
            experiment=experiment,
        )
    return sites


def record_baseline(site: Site) -> None:
    write_results(
        site.root / "recorded" / "results.jsonl",
        site.root / "perf_tests",
        sessions=3,
        experiment={"commit": "unknown"},
    )
    for words in (
        ("recover", "recorded", "--commit", "abc"),
        ("baseline", "propose", "recorded"),
        ("baseline", "accept", "--reason", "made up for tests"),
    ):
        done = site.k3perf(*words)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def run(measured, forks, tmp_path):
    def run_one(
        of: str, arguments: tuple[str, ...], files: dict[str, str], *, base: bool, read: bool = True
    ) -> tuple[int, str]:
        site = measured[of]
        place = tmp_path / "site"
        shutil.copytree(
            site.root, place, ignore=shutil.ignore_patterns("tmp", ".k3perf", "recorded")
        )
        for name, text in files.items():
            (place / "perf_tests" / name).write_text(text)
        resumed = ["--k3-resume", "--k3-results", "measured"] if base and of != "INVALID" else []
        plain = ["-p", "no:cacheprovider"] if not {"--lf", "--ff", "--sw"} & set(arguments) else []
        asked = [] if arguments[:1] and arguments[0].startswith("perf_tests/") else ["perf_tests"]
        every = [
            *asked,
            *plain,
            "-p",
            "no:hypothesispytest",
            "--k3-plain",
            *resumed,
            *arguments,
            *IMPORTED,
        ]
        output = tmp_path / "output"
        status = forks.status(
            "pytest",
            every,
            cwd=place,
            environment={**site.environment(), "COLUMNS": "200"},
            output=output if read else None,
        )
        return status, output.read_text() if read else ""

    return run_one


def test_every_option_of_the_suite_has_a_row():
    given = {word for entry in OWN_OPTIONS for word in entry.arguments if word.startswith("--k3-")}
    assert given >= {*FLAGS, *VALUES, *REPEATED}


def outcomes_of(entry: Row) -> tuple[str, ...]:
    """Those that can make a difference: all but where the statuses are equal, or the
    measured results are not given.
    """
    passed, regressed, invalid = entry.statuses
    if passed == regressed == invalid:
        return ("REGRESSED",)
    if passed == invalid:
        return ("PASS", "REGRESSED")
    return OUTCOMES if entry.base else ("PASS", "INVALID")


def every_run():
    for entry in ROWS:
        name = entry.name.replace(" ", "_").replace("/", "-")
        for of in outcomes_of(entry):
            yield pytest.param(entry, of, id=f"{name}-{of}")


@pytest.mark.parametrize(("entry", "of"), list(every_run()))
def test_every_option_ends_with_its_documented_status(run, entry, of):
    status, said = run(of, entry.arguments, entry.files, base=entry.base)
    assert status == entry.statuses[OUTCOMES.index(of)], said
    assert status in set(ExitStatus)
    if not entry.traceback:
        assert "Traceback (most recent call last)" not in said
        assert "INTERNALERROR" not in said


# what a run finds in a file that an option names
FOUND_IN_FILES = ("--k3-baselines pytest.ini", "--k3-resume --k3-results nowhere")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=entry.name.replace(" ", "_"))
        for entry in (*OWN_OPTIONS, row("--benchmark-json nowhere/out.json", USAGE))
        if entry.statuses == USAGE and entry.name not in FOUND_IN_FILES
    ],
)
def test_collecting_refuses_the_values_that_a_run_refuses(run, entry):
    status, said = run("PASS", (*entry.arguments, "--collect-only"), entry.files, base=entry.base)
    assert status == ExitStatus.USAGE, said
    assert "Traceback (most recent call last)" not in said


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("of", OUTCOMES)
def test_a_reader_that_is_gone_interrupts_the_run(run, of, buffered, monkeypatch):
    """Also where a write goes to Python's buffer, and the flush is what fails."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    status, _ = run(of, (), {}, base=True, read=False)
    assert status == ExitStatus.INTERRUPTED
