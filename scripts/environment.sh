# shellcheck shell=bash
# Sourced by the other scripts: makes the two environments, each only when its lock file changed. Everything that a machine lacks is
# found before anything is downloaded, and reported together (docs/operating.md, "What a machine needs").

k3perf_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
k3perf_packages=$k3perf_root/src/k3perf/system_packages.txt
harness_disk_mb=1000 # .venv is 0.6 GB
engine_disk_mb=5000 # .venv-engine is 3.4 GB, pip needs 1 GB for temporary files, the caches little
k3perf_cpuinfo=/proc/cpuinfo
problems=()

say() { printf 'k3perf: %s\n' "$*" >&2; }

# INVALID, the status of a machine that is not fit (docs/operating.md): status 1 means a regression and nothing else.
fail() { say "$*"; exit 10; }

# print_usage SCRIPT: its first comment.
print_usage() { sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$1"; }

# ---- what the machine lacks ----

# find_python: print a Python of at least 3.11: K3PERF_PYTHON alone if given, else the first on PATH. For a virtual environment it is the
# Python that made it. One inside .venv or .venv-engine does not count: setting up that environment would remove it.
find_python() {
    local candidate found candidates=(python3.11 python3.12 python3.13 python3)
    [ -z "${K3PERF_PYTHON:-}" ] || candidates=("$K3PERF_PYTHON")
    for candidate in "${candidates[@]}"; do
        while read -r found; do
            found=$("$found" -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print(getattr(sys, "_base_executable", "") or sys.executable)' \
                2>/dev/null </dev/null) || continue
            case $found in "$k3perf_root/.venv"/* | "$k3perf_root/.venv-engine"/*) continue ;; esac
            printf '%s\n' "$found"
            return 0
        done < <(type -aP "$candidate")
    done
    return 1
}

check_python() {
    local found
    if [ -n "${K3PERF_PYTHON:-}" ]; then
        find_python >/dev/null || problems+=("Python: K3PERF_PYTHON=$K3PERF_PYTHON is not Python 3.11 or newer. Name one that is, or unset it.")
    elif command -v python3 >/dev/null && ! find_python >/dev/null; then
        found=$(python3 --version 2>&1 || true)
        problems+=("Python: python3 is ${found:-broken}, 3.11 or newer is needed (Debian 12, Ubuntu 24.04 and later have it). Install one and name it in K3PERF_PYTHON.")
    fi
}

has_some_python() { [ -n "${K3PERF_PYTHON:-}" ] || command -v python3 >/dev/null; }

# packages_for NEED...: names from the list.
packages_for() {
    local name need _
    while read -r name need _; do
        case " $* " in *" $need "*) printf '%s\n' "$name" ;; esac
    done < <(grep -v '^#' "$k3perf_packages")
}

# is_present RECOGNISED: whether what the list's third column names is there. An unfit Python is check_python's to report.
is_present() {
    local what=${1#*:} python
    python=$(find_python) || python=
    case $1 in
    command:python3) [ -n "$python" ] || has_some_python ;;
    command:*) command -v "$what" >/dev/null ;;
    module:*) if [ -n "$python" ]; then "$python" -c "import $what" 2>/dev/null; else has_some_python; fi ;;
    library:*) "${python:-false}" -c "import ctypes; ctypes.CDLL('$what')" 2>/dev/null || PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -qF "$what" ;;
    file:*) [ -e "$what" ] ;;
    *) fail "$k3perf_packages: cannot tell whether $1 is present" ;;
    esac
}

# missing_packages NEED...: "NAME (why)" for each that is not present.
missing_packages() {
    local name need recognised why python
    while read -r name need recognised why; do
        case " $* " in *" $need "*) ;; *) continue ;; esac
        is_present "$recognised" && continue
        if [ "$recognised" = module:ensurepip ] && python=$(find_python); then # Debian has a package for each version
            name=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        fi
        printf '%s (%s)\n' "$name" "$why"
    done < <(grep -v '^#' "$k3perf_packages")
}

# as_root COMMAND...: sudo must not wait for a password that nobody can type.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
}

can_be_root() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; }
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# require_packages NEED...: install what is missing, or say which command does.
require_packages() {
    local missing names command said
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    names=$(cut -d ' ' -f 1 <<<"$missing" | paste -sd ' ')
    missing=$(paste -sd , <<<"$missing" | sed 's/,/, /g')
    command="apt-get update && apt-get install -y --no-install-recommends $names"
    if ! command -v apt-get >/dev/null; then
        problems+=("packages: $missing. There is no apt-get here; install what holds the same.")
    elif ! can_be_root; then
        problems+=("packages: $missing. Only root can install them: $command")
    elif [ ${#problems[@]} = 0 ]; then
        say "installing packages: $names"
        # shellcheck disable=SC2086 # names are words
        said=$( (apt_get update && apt_get install -y --no-install-recommends $names) 2>&1) ||
            problems+=("packages: $names cannot be installed. Try \`$command\` as root. apt-get said: $said")
    fi
}

# Every CPU build of vLLM needs AVX2; what more a target needs, the harness says.
check_processor() {
    if [ "$(uname -m)" != x86_64 ]; then
        problems+=("processor: $(uname -m). The CPU engine runs on x86-64; on other hosts name an engine's Python in K3PERF_ENGINE_PYTHON.")
    elif ! grep -qw avx2 "$k3perf_cpuinfo"; then
        problems+=("processor: it has no AVX2, which vLLM's CPU build needs. Use another machine, or let the hypervisor pass it on (qemu: -cpu host).")
    fi
}

# check_disk NEED...: room for the environments that are yet to be made.
check_disk() {
    local free_mb needed_mb=0
    if harness_is_stale; then needed_mb=$harness_disk_mb; fi
    case " $* " in *" engine "*) needed_mb=$((needed_mb + engine_disk_mb)) ;; esac
    free_mb=$(($(df -Pk "$k3perf_root" | awk 'NR == 2 { print $4 }') * 1024 / 1000000))
    [ "$free_mb" -ge "$needed_mb" ] ||
        problems+=("disk: $free_mb MB are free at $k3perf_root, the set-up takes $needed_mb MB. Free some space, or use a larger disk.")
}

report_problems() {
    [ ${#problems[@]} = 0 ] && return 0
    say "this machine lacks what the set-up needs; nothing was downloaded:"
    printf '  - %s\n' "${problems[@]}" >&2
    exit 10
}

# require_machine NEED...: setup, tests or engine. Ends with everything that is missing.
require_machine() {
    check_python
    case " $* " in *" engine "*) check_processor ;; esac
    check_disk "$@"
    require_packages "$@"
    [ ${#problems[@]} = 0 ] && check_python # the one that was just installed
    report_problems
}

# ---- the environments ----

# is_stale DIRECTORY LOCK...: true when DIRECTORY is new or its locks changed, and has to be filled.
is_stale() {
    [ ! -x "$1/bin/python" ] || [ "$(cat "$1/.k3perf-lock" 2>/dev/null)" != "$(lock_digest "${@:2}")" ]
}

lock_digest() { cat "$@" | sha256sum | cut -d' ' -f1; }

# provide_environment DIRECTORY MESSAGE INSTALL LOCK...: fill DIRECTORY if it is stale. Afterwards this process, and the program that takes
# its place, holds a shared lock on DIRECTORY, so that no other run fills it meanwhile. The kernel drops the lock at the end.
provide_environment() {
    local directory=$1 message=$2 locks=("${@:4}") lock users
    mkdir -p "$directory" || fail "cannot make the directory $directory"
    exec {lock}<"$directory"
    while is_stale "$directory" "${locks[@]}"; do
        if can_lock -n -x "$lock"; then
            is_stale "$directory" "${locks[@]}" || break # another run has filled it since the look above
            users=$(environment_users "$directory")
            [ -z "$users" ] || fail "$directory is out of date, and processes use it (pid $users). End them, then run the command again"
            say "$message"
            fill_environment "$directory" "${@:3}"
            break
        elif can_lock -n -s "$lock"; then
            is_stale "$directory" "${locks[@]}" || break
            fail "$directory is out of date, and another run uses it. Wait for its end, then run the command again"
        fi
        say "another run sets up $directory; waiting for it"
        can_lock -s "$lock"
    done
    can_lock -s "$lock"
}

# can_lock OPTION... DESCRIPTOR: false when another process holds the lock. A file system without locks refuses none.
can_lock() {
    local status=0
    flock -E 75 "$@" || status=$?
    [ "$status" != 75 ]
}

# environment_users DIRECTORY: pids of processes that run code of DIRECTORY, also those that no script started.
environment_users() {
    { grep -lsF "$(cd "$1" && pwd -P)/lib/" /proc/[0-9]*/maps || true; } | cut -d / -f 3 | paste -sd ' '
}

# fill_environment DIRECTORY INSTALL LOCK...: it empties DIRECTORY and keeps its inode, which the lock is on.
fill_environment() {
    local directory=$1 python
    python=$(find_python) || fail "no Python 3.11 or newer found"
    "$python" -m venv --clear "$directory" || fail "cannot make a virtual environment in $directory"
    "$2" || fail "installing into $directory failed; the messages above say why. Run the command again once that is mended"
    lock_digest "${@:3}" >"$directory/.k3perf-lock"
}

install_harness() {
    install_locked_harness &&
        "$k3perf_root/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e "$k3perf_root"
}

# A runner's image has the files of the lock that it was built from (K3PERF_HARNESS_WHEELS). A commit with another lock takes its own.
install_locked_harness() {
    local pip=("$k3perf_root/.venv/bin/python" -m pip) lock=$k3perf_root/requirements/harness.txt
    if [ -d "${K3PERF_HARNESS_WHEELS:-}" ]; then
        "${pip[@]}" install -q --disable-pip-version-check --no-deps --require-hashes --no-index \
            --find-links "$K3PERF_HARNESS_WHEELS" -r "$lock" 2>/dev/null && return
        say "this runner's image was built from another harness.txt; the packages come from the index"
    fi
    "${pip[@]}" install -q --disable-pip-version-check --no-deps --require-hashes -r "$lock"
}

# pip_setting PATTERN: values of pip's settings (from its files and from PIP_* variables) that match.
pip_setting() {
    "$k3perf_root/.venv-engine/bin/python" -m pip config list | sed -nE "s/^[^=]*\.($1)='(.*)'\$/\2/p"
}

# torch's CPU build is not on PyPI. pip takes it where its settings name a place besides the index; elsewhere uv does, which knows where
# PyTorch publishes its CPU builds, and reads no setting of pip's.
install_engine_cpu() {
    local python=$k3perf_root/.venv-engine/bin/python lock=$k3perf_root/requirements/engine-cpu.txt index
    if [ -n "$(pip_setting 'find-links|extra-index-url|no-index')" ]; then
        "$python" -m pip install -q --disable-pip-version-check --no-deps -r "$lock"
    else
        index=$(pip_setting index-url | tail -n 1)
        "$python" -m pip install -q --disable-pip-version-check uv &&
            ${index:+env UV_DEFAULT_INDEX="$index"} "$python" -m uv pip install -q --python "$python" --no-deps --torch-backend cpu -r "$lock"
    fi
}

# An engine whose native module does not load starts all the same, and fails later with an error that names no library.
load_native_module() {
    local said
    said=$("$k3perf_root/.venv-engine/bin/python" -c "$(cat "$k3perf_root/src/k3perf_probe/native_module.py")" "$k3perf_packages" \
        2>&1 >/dev/null) || fail "vLLM's native module does not load in .venv-engine. ${said:-The process that loads it was killed.}"
}

harness_is_stale() {
    is_stale "$k3perf_root/.venv" "$k3perf_root/requirements/harness.txt" "$k3perf_root/pyproject.toml"
}

engine_is_stale() {
    [ -z "${K3PERF_ENGINE_PYTHON:-}" ] && is_stale "$k3perf_root/.venv-engine" "$k3perf_root/requirements/engine-cpu.txt"
}

harness_environment() {
    provide_environment "$k3perf_root/.venv" "setting up the harness's environment (.venv)" install_harness \
        "$k3perf_root/requirements/harness.txt" "$k3perf_root/pyproject.toml"
}

# The CPU engine's environment, unless another engine Python is named. On a GPU host that is what one wants (README.md, "Using it").
engine_environment() {
    [ -z "${K3PERF_ENGINE_PYTHON:-}" ] || return 0
    local was_stale=false
    if engine_is_stale; then was_stale=true; fi
    if $was_stale && command -v nvidia-smi >/dev/null; then
        say "a GPU is here: K3PERF_ENGINE_PYTHON=/path/to/vllm/bin/python measures with that engine; without it the CPU engine is set up"
    fi
    provide_environment "$k3perf_root/.venv-engine" "setting up the CPU engine's environment (.venv-engine, 3.5 GB, one to five minutes)" \
        install_engine_cpu "$k3perf_root/requirements/engine-cpu.txt"
    if $was_stale; then load_native_module; fi
}

# set_up NEED...: the harness's environment, with engine also the CPU engine's.
set_up() {
    local needs=" $* "
    engine_is_stale || needs=${needs/ engine / }
    # shellcheck disable=SC2086 # needs are words
    require_machine $needs
    harness_environment
    case " $* " in *" engine "*) engine_environment ;; esac
}
