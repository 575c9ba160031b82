# Sourced by the other scripts: makes the two environments, each only when its lock file changed. Nothing here needs more than a
# Debian or Ubuntu with Python 3.11 or newer.

k3perf_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf 'k3perf: %s\n' "$*" >&2; }

fail() { say "$*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 1; fi
}

# A Python of at least 3.11: K3PERF_PYTHON if given, else the newest on PATH that the locks are made for. Of an active virtual environment
# it is the one that it was made with: the environment may be the very one that is about to be removed.
find_python() {
    local candidate
    for candidate in ${K3PERF_PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)'
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one (apt-get install python3) or name it in K3PERF_PYTHON"
}

# Debian splits venv and pip off Python; bring them where they are missing.
require_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    say "the venv module of $1 is missing, installing it"
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    as_root apt-get update -qq && as_root apt-get install -y -qq "python$version-venv" >/dev/null ||
        fail "cannot install python$version-venv; install it and try again"
}

# The tests make repositories of their own.
require_git() {
    command -v git >/dev/null && return
    say "git is missing, installing it"
    as_root apt-get update -qq && as_root apt-get install -y -qq git >/dev/null || fail "cannot install git; install it and try again"
}

# stale_environment DIR LOCK...: true when DIR is new or its locks changed, and has to be filled.
stale_environment() {
    local directory=$1 wanted
    shift
    wanted=$(cat "$@" | sha256sum | cut -d' ' -f1)
    [ -x "$directory/bin/python" ] && [ "$(cat "$directory/.k3perf-lock" 2>/dev/null)" = "$wanted" ] && return 1
    stale_lock=$wanted
    return 0
}

fill_environment() {
    local directory=$1 python
    shift
    python=$(find_python)
    require_venv "$python"
    rm -rf "$directory"
    "$python" -m venv "$directory" || fail "cannot make a virtual environment in $directory"
    "$@" || fail "installing into $directory failed; the messages above say why. Run the command again once that is mended"
    printf '%s\n' "$stale_lock" >"$directory/.k3perf-lock"
}

install_harness() {
    "$k3perf_root/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$k3perf_root/requirements/harness.txt" &&
        "$k3perf_root/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e "$k3perf_root"
}

# torch's CPU build is not on PyPI. pip takes it from PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL where one is set; elsewhere uv does, which
# knows where PyTorch publishes its CPU builds.
install_engine_cpu() {
    local python=$k3perf_root/.venv-engine/bin/python lock=$k3perf_root/requirements/engine-cpu.txt
    if [ -n "${PIP_FIND_LINKS:-}${PIP_EXTRA_INDEX_URL:-}" ]; then
        "$python" -m pip install -q --disable-pip-version-check --no-deps -r "$lock"
    else
        "$python" -m pip install -q --disable-pip-version-check uv &&
            "$python" -m uv pip install -q --python "$python" --no-deps --torch-backend cpu -r "$lock"
    fi
}

harness_environment() {
    if stale_environment "$k3perf_root/.venv" "$k3perf_root/requirements/harness.txt" "$k3perf_root/pyproject.toml"; then
        say "setting up the harness's environment (.venv)"
        fill_environment "$k3perf_root/.venv" install_harness
    fi
}

# The CPU engine's environment, unless another engine Python is named. On a GPU host that is what one wants (README.md, "Using it").
engine_environment() {
    [ -n "${K3PERF_ENGINE_PYTHON:-}" ] && return 0
    if command -v nvidia-smi >/dev/null; then
        say "a GPU is here: K3PERF_ENGINE_PYTHON=/path/to/vllm/bin/python measures with that engine; without it the CPU engine is set up"
    fi
    if stale_environment "$k3perf_root/.venv-engine" "$k3perf_root/requirements/engine-cpu.txt"; then
        say "setting up the CPU engine's environment (.venv-engine, 3.5 GB, one to five minutes)"
        fill_environment "$k3perf_root/.venv-engine" install_engine_cpu
    fi
}
