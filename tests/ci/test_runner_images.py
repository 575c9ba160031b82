"""Both images built without a docker engine, and the entry point run in them for real:
buildah with chroot isolation over a base made by debootstrap.

The runner tarball is a stub that speaks to a stub of GitHub; everything else is what
production uses. Needs root, buildah, debootstrap and a Debian mirror; without them the
tests are skipped, or fail where K3PERF_TEST_IMAGES is "required".
K3PERF_TEST_BASE_IMAGE names a base image that is already there (with python3-venv and
the metadata of a vllm). Chroot isolation gives a container no process namespace and no
device: what the kernel's namespaces and a real GPU add is not shown here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .test_runner_entry import NVIDIA_SMI, SHA, pull_request

REPOSITORY = Path(__file__).resolve().parents[2]
BUILDAH = ("buildah", "--storage-driver", "vfs")
REQUIRED = (
    os.environ.get("K3PERF_TEST_IMAGES") == "required"
)  # in CI a missing tool must not look like a pass
MISSING = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None] + (
    [] if os.getuid() == 0 else ["root"]
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(
        bool(MISSING) and not REQUIRED,
        reason=(
            f"image builds need {' and '.join(MISSING)}; apt-get install buildah debootstrap, as"
            " root"
        ),
    ),
]

# the set-up loads vLLM's native module, which counts once it is mapped
VLLM = {
    "__init__.py": "",
    "_C.abi3.so": "tiny",
    "platforms.py": (
        """
import mmap
from pathlib import Path
class current_platform:
    @classmethod
    def import_kernels(cls):
        with Path(__file__).with_name("_C.abi3.so").open("rb") as library:
            cls.mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
"""
    ),
}
# As GitHub's run.sh it ends with 0 whatever its listener, here a subshell, ends with.
RUN_SH = r"""#!/bin/bash
(
set -eu
url=$(printf %s "$ACTIONS_RUNNER_INPUT_JITCONFIG" | base64 -d | jq -r .url)
curl -fsS "$url/job" -o job.json
jq .event job.json >event.json
export GITHUB_EVENT_PATH=$PWD/event.json GITHUB_EVENT_NAME GITHUB_REPOSITORY=team/suite
GITHUB_EVENT_NAME=$(jq -r .event_name job.json)
conclusion=refused
if "$ACTIONS_RUNNER_HOOK_JOB_STARTED" >hook.log; then
    if bash -c "$(jq -r .script job.json)" >job.log 2>&1; then conclusion=success; else conclusion=failure; fi
fi
jq -n --arg conclusion "$conclusion" --arg hook "$(cat hook.log)" --arg log "$(cat job.log 2>/dev/null)" '$ARGS.named' |
    curl -fsS --json @- "$url/done"
)
echo "Exiting runner... (listener: $?)"
exit 0
"""


def buildah(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        [*BUILDAH, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0 or not check, (
        f"buildah {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout if check else done.stdout + done.stderr


class GitHub(BaseHTTPRequestHandler):
    """Serves the runner tarball, just-in-time configurations and one job; takes the
    job's report.
    """

    tarball: bytes
    job: dict[str, Any]
    reports: list[dict[str, Any]]
    registered: list[str]

    def do_GET(self) -> None:
        self._answer(
            self.tarball if self.path == "/runner.tar.gz" else json.dumps(self.job).encode()
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/done":
            self.reports.append(body)
            return self._answer(b"{}")
        self.registered.append(body["name"])
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self._answer(
            json.dumps(
                {"encoded_jit_config": base64.b64encode(json.dumps({"url": url}).encode()).decode()}
            ).encode()
        )

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        return


def runner_tarball() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in (
            ("run.sh", RUN_SH),
            ("bin/installdependencies.sh", "#!/bin/sh\nexit 0\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture(scope="module")
def github() -> Iterator[tuple[str, type[GitHub]]]:
    handler = type(
        "Stub", (GitHub,), {"tarball": runner_tarball(), "job": {}, "reports": [], "registered": []}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("K3PERF_TEST_BASE_IMAGE")
    if given:
        yield given
        return
    root = tmp_path_factory.mktemp("base")
    command = [
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates,python3,python3-venv",
        "bookworm",
        str(root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:]
    told = root / "usr" / "lib" / "python3" / "dist-packages" / "vllm-0.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.0\n"
    )  # the image's build asks for it
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, str(root), "/")
    name = "localhost/k3perf-test-base"
    buildah("commit", "--quiet", container, name)
    buildah("rm", container)
    shutil.rmtree(root)
    yield name
    buildah("rmi", "--force", name)


@pytest.fixture(scope="module", autouse=True)
def harness_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real lock is 150 MB of packages; one small wheel stands for them."""
    folder = tmp_path_factory.mktemp("harness")
    folder.chmod(0o755)
    made = folder / "tiny_harness-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("tiny_harness.py", "")
        about = "Metadata-Version: 2.1\nName: tiny-harness\nVersion: 1.0\n"
        wheel.writestr("tiny_harness-1.0.dist-info/METADATA", about)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("tiny_harness-1.0.dist-info/WHEEL", tags)
        wheel.writestr("tiny_harness-1.0.dist-info/RECORD", "")
    HARNESS_LOCK.write_text(
        f"--find-links /harness\ntiny-harness==1.0 --hash=sha256:{hashlib.sha256(made.read_bytes()).hexdigest()}\n"
    )
    HARNESS_WHEELS.append(folder)
    yield
    HARNESS_LOCK.unlink()


HARNESS_LOCK = REPOSITORY / "requirements" / ".test-harness.txt"
HARNESS_WHEELS: list[Path] = []


def build(
    dockerfile: str,
    tag: str,
    base: str,
    github: tuple[str, type[GitHub]],
    *arguments: str,
    sha256: str = "",
    check: bool = True,
) -> str:
    url, stub = github
    known = {
        "BASE_IMAGE": base,
        "RUNNER_URL": f"{url}/runner.tar.gz",
        "RUNNER_SHA256": sha256 or hashlib.sha256(stub.tarball).hexdigest(),
    }
    values = [part for name, value in known.items() for part in ("--build-arg", f"{name}={value}")]
    command = [
        "bud",
        "--format",
        "docker",
        "--isolation",
        "chroot",
        *values,
        *("--build-arg", f"HARNESS_LOCK=requirements/{HARNESS_LOCK.name}"),
        *("--build-arg", "PIP_NO_INDEX=1", "-v", f"{HARNESS_WHEELS[-1]}:/harness:ro"),
        *arguments,
        "-t",
        tag,
        "-f",
        f"docker/{dockerfile}",
        ".",
    ]
    return buildah(*command, check=check)


@pytest.fixture(scope="module")
def image(base: str, github: tuple[str, type[GitHub]]) -> Iterator[str]:
    build("Dockerfile", "localhost/k3perf-test-gpu", base, github)
    yield "localhost/k3perf-test-gpu"
    buildah("rmi", "--force", "localhost/k3perf-test-gpu")


class Host:
    """A container of the image, a device as a folder, and the launcher that production
    uses.
    """

    def __init__(self, root: Path, image: str, api: str) -> None:
        self.container = buildah("from", image).strip()
        self.device = root / "device"
        self.device.mkdir(mode=0o777)
        self.device.chmod(0o777)
        smi = root / "nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        self.state("0, 4\n", "")
        token = root / "token"
        token.write_text("t")
        volumes = f"-v {smi}:/usr/local/bin/nvidia-smi:ro -v {self.device}:/device"
        entry = "env FAKE_DEVICE=/device K3PERF_START_WAIT_S=0 K3PERF_END_WAIT_S=2"
        run = f"run --isolation chroot --terminal=false {volumes} {self.container} --"
        self.environment = {
            **os.environ,
            "K3PERF_REPOSITORY": "team/suite",
            "K3PERF_TOKEN_FILE": str(token),
            "GITHUB_API_URL": api,
            "K3PERF_CONTAINER_COMMAND": (
                f"{' '.join(BUILDAH)} {run} {entry} /opt/k3perf/runner_entry.py run"
            ),
        }

    def state(self, memory: str, processes: str) -> None:
        for name, text in (("memory", memory), ("processes", processes)):
            path = self.device / name
            path.write_text(text)
            path.chmod(0o666)

    def launch(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(REPOSITORY / "docker" / "host" / "launch.py"), "--once"]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=180
        )


@pytest.fixture
def host(tmp_path: Path, image: str, github: tuple[str, type[GitHub]]) -> Iterator[Host]:
    api, stub = github
    stub.reports.clear()
    stub.registered.clear()
    made = Host(tmp_path, image, api)
    yield made
    buildah("rm", made.container)


def job(
    stub: type[GitHub],
    script: str,
    event_name: str = "schedule",
    event: dict[str, Any] | None = None,
) -> None:
    stub.job = {"event_name": event_name, "event": event or {}, "script": script}


def test_register_take_one_job_and_end_clean(host: Host, github: tuple[str, type[GitHub]]) -> None:
    _, stub = github
    job(
        stub,
        'id -un; echo "$VLLM_CACHE_ROOT"; touch /opt/k3perf/x 2>/dev/null || echo read-only; echo'
        ' "$K3PERF_ENGINE_PYTHON"; ls "$K3PERF_HARNESS_WHEELS"',
    )
    done = host.launch()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "k3perf-runner: clean" in done.stdout
    assert len(stub.registered) == 1
    (report,) = stub.reports
    assert report["conclusion"] == "success"
    user, cache, written, python, wheel = report["log"].splitlines()
    assert wheel == "tiny_harness-1.0-py3-none-any.whl", "the harness is in the image"
    assert user == "runner"
    assert cache.startswith("/cache/compile/")
    assert cache.endswith("-580.95.05/vllm")
    assert written == "read-only", "a job cannot change the guard"
    assert python == "/usr/bin/python3"


def test_a_dirty_device_registers_nothing(host: Host, github: tuple[str, type[GitHub]]) -> None:
    _, stub = github
    host.state("0, 70000\n", "4711, python3, 70000\n")
    done = host.launch()
    assert done.returncode == 20, done.stdout + done.stderr
    assert "process on the device: 4711, python3, 70000" in done.stdout
    assert stub.registered == []


def test_what_a_job_leaves_behind_is_ended_or_reported(
    host: Host, github: tuple[str, type[GitHub]]
) -> None:
    _, stub = github
    # an engine that outlives its job and holds the device until it is ended
    holder = (
        "trap 'echo \"0, 4\" >/device/memory; exit' TERM; echo '0, 70000' >/device/memory; while :;"
        " do sleep 0.1; done"
    )
    job(
        stub,
        f"setsid nohup bash -c {json.dumps(holder)} vllm-engine >/dev/null 2>&1 & sleep 1; cat"
        " /device/memory",
    )
    done = host.launch()
    assert done.returncode == 0, done.stdout + done.stderr
    assert stub.reports[0]["log"] == "0, 70000", "the job did hold the device"
    job(stub, "echo '0, 70000' >/device/memory")
    done = host.launch()
    assert done.returncode == 21
    assert "take this host out of service" in done.stdout


def test_a_forks_job_runs_only_with_the_label_of_its_commit(
    host: Host, github: tuple[str, type[GitHub]]
) -> None:
    _, stub = github
    job(stub, "echo never", "pull_request", pull_request("stranger/suite", "gpu-ok-" + "b" * 40))
    refused = host.launch()
    assert refused.returncode == 25, refused.stdout
    assert "needs a maintainer's label gpu-ok-" + SHA in refused.stdout
    assert stub.reports == [], "the runner was ended, so that no later step ran"
    job(stub, "echo ran", "pull_request", pull_request("stranger/suite", "gpu-ok-" + SHA))
    assert host.launch().returncode == 0
    assert stub.reports[0]["log"] == "ran"


def test_a_wrong_checksum_stops_the_build(base: str, github: tuple[str, type[GitHub]]) -> None:
    told = build(
        "Dockerfile", "localhost/k3perf-test-wrong", base, github, sha256="0" * 64, check=False
    )
    assert "computed checksum did NOT match" in told
    assert "localhost/k3perf-test-wrong" not in buildah("images")


def test_the_image_says_how_it_is_run(image: str) -> None:
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert config["User"] == "1001"
    assert config["Entrypoint"] == ["/opt/k3perf/runner_entry.py"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/k3perf/runner_entry.py", "health"]


def test_the_cpu_image_holds_an_engine_environment_from_its_lock(
    base: str, github: tuple[str, type[GitHub]], tmp_path: Path
) -> None:
    """The real lock is 3.5 GB; a wheel of one line stands for it, installed by the same
    script.
    """
    with zipfile.ZipFile(tmp_path / "tiny_engine-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_engine.py", "NAME = 'tiny'\n")
        for name, text in VLLM.items():
            wheel.writestr(f"vllm/{name}", text)
        wheel.writestr(
            "tiny_engine-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n",
        )
        wheel.writestr(
            "tiny_engine-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_engine-1.0.dist-info/RECORD", "")
    lock = REPOSITORY / "requirements" / ".test-engine.txt"
    lock.write_text("tiny-engine==1.0\n")
    try:
        environment = (
            "--build-arg",
            "PIP_FIND_LINKS=/wheels",
            "-v",
            f"{tmp_path}:/wheels:ro",
        )
        build(
            "Dockerfile.cpu",
            "localhost/k3perf-test-cpu",
            base,
            github,
            *environment,
            "--build-arg",
            "ENGINE_LOCK=requirements/.test-engine.txt",
        )
    finally:
        lock.unlink()
    container = buildah("from", "localhost/k3perf-test-cpu").strip()
    try:
        script = (
            '"$K3PERF_ENGINE_PYTHON" -c "import tiny_engine; print(tiny_engine.NAME)"; id -u; cat'
            ' /opt/k3perf/image-id; echo "$K3PERF_DEVICE"; sha256sum </opt/k3perf/Dockerfile'
        )
        told = buildah(
            "run", "--isolation", "chroot", container, "--", "/bin/bash", "-c", script
        ).split()
        assert told[:2] == ["tiny", "1001"]
        assert len(told[2]) == 12
        assert told[3] == "cpu"
        built_from = (REPOSITORY / "docker" / "Dockerfile.cpu").read_bytes()
        assert told[4] == hashlib.sha256(built_from).hexdigest()
    finally:
        buildah("rm", container)
        buildah("rmi", "--force", "localhost/k3perf-test-cpu")
