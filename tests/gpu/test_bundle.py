"""The bundle: what is missing on a host, parts that check themselves, and the whole way
from wheels to an unpacked import folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.processes import PATIENCE_S

from k3perf.cli.bundle_command import register
from k3perf.engine.bundle import archive
from k3perf.engine.bundle.closure import LeaveOut, Wheel, missing_packages
from k3perf.engine.bundle.host import HostInventory, read_inventory
from k3perf.engine.bundle.make import BundlePlan, make_bundle, read_recipe
from k3perf.engine.bundle.wheels import DownloadError, PipFetcher, strip, unpack_wheel
from k3perf.errors import ConfigFileError, UsageError

MARKERS = {
    "python_version": f"{sys.version_info[0]}.{sys.version_info[1]}",
    "platform_machine": "x86_64",
    "sys_platform": "linux",
}


def host(**installed: str) -> HostInventory:
    return HostInventory(
        schema_version=1, markers=MARKERS, libc=("glibc", "2.28"), installed=installed
    )


class Index:
    """A package index in memory: name to (version, requirements)."""

    def __init__(self, **packages: tuple[str, Sequence[str]]) -> None:
        self.packages = {canonicalize_name(name): value for name, value in packages.items()}
        self.asked: list[str] = []

    def __call__(self, requirements: tuple[Requirement, ...]) -> tuple[Wheel, ...]:
        found = []
        for requirement in requirements:
            name = canonicalize_name(requirement.name)
            self.asked.append(name)
            version, requires = self.packages[name]
            found.append(Wheel(Path(f"{name}.whl"), name, version, tuple(requires)))
        return tuple(found)


def test_only_what_the_host_lacks_is_carried() -> None:
    index = Index(
        engine=("1.0", ["torch==9.9", "Fast_API>=1", "here"]),
        fast_api=("2.0", ["deep; sys_platform == 'linux'"]),
        deep=("1", []),
    )
    closure = missing_packages(["engine==1.0"], host(torch="2.11.0", here="1"), index)
    assert set(closure.carried) == {"engine", "fast-api", "deep"}
    assert closure.kept == {"torch": "2.11.0", "here": "1"}
    assert closure.conflicts == ["engine requires torch==9.9, 2.11.0 is installed on the host"]


def test_markers_and_extras_decide_on_the_host_s_values() -> None:
    index = Index(
        engine=("1", ["server[fast]", "win; sys_platform == 'win32'"]),
        server=("1", ["always", "loop; extra == 'fast'", "docs; extra == 'doc'"]),
        always=("1", []),
        loop=("1", []),
    )
    assert set(missing_packages(["engine"], host(), index).carried) == {
        "engine",
        "server",
        "always",
        "loop",
    }


def test_an_extra_asked_for_later_is_still_followed() -> None:
    index = Index(
        engine=("1", ["server", "other"]),
        server=("1", ["loop; extra == 'fast'"]),
        other=("1", ["server[fast]"]),
        loop=("1", []),
    )
    assert "loop" in missing_packages(["engine"], host(), index).carried


def test_cycles_end_and_each_package_is_fetched_once() -> None:
    index = Index(a=("1", ["b"]), b=("1", ["a", "b"]))
    assert set(missing_packages(["a"], host(), index).carried) == {"a", "b"}
    assert sorted(index.asked) == ["a", "b"]


def test_left_out_is_named_with_its_reason_but_roots_are_always_carried() -> None:
    index = Index(engine=("1", ["nvidia-nccl"]))
    closure = missing_packages(
        ["engine"],
        host(engine="0.1"),
        index,
        (LeaveOut("nvidia-*", "with torch"), LeaveOut("engine", "no")),
    )
    assert closure.left_out == {"nvidia-nccl": "with torch"}
    assert set(closure.carried) == {"engine"}


def test_platform_tags_go_no_further_than_the_host_s_glibc() -> None:
    tags = host().platform_tags()
    assert tags[0] == "manylinux_2_28_x86_64"
    assert "manylinux2014_x86_64" in tags
    assert "manylinux_2_31_x86_64" not in tags


def wheel_file(
    folder: Path, name: str, files: dict[str, str], requires: Sequence[str] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(
        f"Requires-Dist: {line}\n" for line in requires
    )
    info = f"{name}-1.0.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    content[f"{info}/RECORD"] = "".join(f"{entry},,\n" for entry in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as file:
        for entry, text in content.items():
            file.writestr(entry, text)
    return path


def test_wheel_data_goes_where_imports_look(tmp_path: Path) -> None:
    files = {
        "one/a.py": "A = 1",
        "one-1.0.data/purelib/two/b.py": "B = 2",
        "one-1.0.data/scripts/tool": "#!",
    }
    unpack_wheel(wheel_file(tmp_path, "one", files), tmp_path / "site")
    assert (tmp_path / "site" / "two" / "b.py").read_text() == "B = 2"
    assert not list((tmp_path / "site").rglob("tool"))


def test_wheel_that_leads_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leads outside"):
        unpack_wheel(wheel_file(tmp_path, "evil", {"../outside.py": ""}), tmp_path / "site")
    assert not (tmp_path / "outside.py").exists()


def test_strip_keeps_what_keep_names(tmp_path: Path) -> None:
    for name in ("configs/E=8,H200.json", "configs/E=8,H100.json", "model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("12345")
    assert strip(tmp_path, ("configs/*.json",), ("*H200*",)) == {"configs/E=8,H100.json": 5}


def test_shipped_recipe_reads_and_a_mistyped_key_is_named(tmp_path: Path) -> None:
    left_out, patterns, keep = read_recipe(None)
    assert any(entry.pattern == "torch" for entry in left_out)
    assert patterns
    assert keep
    (tmp_path / "recipe.yaml").write_text("leaveout: {}\n")
    with pytest.raises(UsageError, match="leaveout"):
        read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("xz", [True, False])
@pytest.mark.parametrize("part_bytes", [1, 97, 1 << 20])
def test_parts_are_no_larger_than_asked_and_join_to_the_folder(
    xz: bool, part_bytes: int, tmp_path: Path, monkeypatch: Any
) -> None:
    if not xz:
        monkeypatch.setattr("shutil.which", lambda _name: None)
    site = tmp_path / "site"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg" / "a.py").write_text("A = 1\n" * 50)
    output = tmp_path / "out"
    output.mkdir()
    parts = archive.pack(site, output, part_bytes=part_bytes)
    assert all(0 < part.stat().st_size <= part_bytes for part in parts)
    assert sorted(output.iterdir()) == sorted(parts)
    assert b"A = 1\n" * 50 in lzma.decompress(b"".join(part.read_bytes() for part in sorted(parts)))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    wheels = tmp_path / "wheels"
    one = wheel_file(wheels, "one", {"one/__init__.py": "VALUE = 41\n", "one/big.so": "x" * 4000})
    two = wheel_file(
        wheels, "two", {"two.py": "import one\nANSWER = one.VALUE + 1\n"}, requires=["one"]
    )

    def fetch(requirements: tuple[Requirement, ...]) -> tuple[Wheel, ...]:
        known = {"one": Wheel(one, "one", "1.0", ()), "two": Wheel(two, "two", "1.0", ("one",))}
        return tuple(known[requirement.name] for requirement in requirements)

    plan = BundlePlan(("two",), part_bytes=300, strip=("*/big.so",))
    output = tmp_path / "bundle"
    manifest = make_bundle(host(packaging="0"), plan, output, download_folder=wheels, fetch=fetch)
    assert manifest["carried"] == {"one": "1.0", "two": "1.0"}
    assert manifest["stripped_bytes"] == {"one/big.so": 4000}
    return output


def unpack(bundle: Path, destination: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(bundle / "unpack.py"), str(destination)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_bundle_unpacks_to_something_that_imports(bundle: Path, tmp_path: Path) -> None:
    assert archive.verify(bundle) == ()
    done = unpack(bundle, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"export PYTHONPATH={tmp_path / 'there'}")
    code = "import two; print(two.ANSWER)"
    seen = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "there",
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "42\n"


def parts_of(bundle: Path) -> list[Path]:
    return sorted(bundle.glob("site.tar.xz.*"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda bundle: parts_of(bundle)[-1].unlink(), "missing"),
        (lambda bundle: flip(parts_of(bundle)[0]), "changed"),
        (
            lambda bundle: parts_of(bundle)[0].write_bytes(parts_of(bundle)[0].read_bytes()[:-1]),
            "copied incompletely",
        ),
        (lambda bundle: (bundle / "site.tar.xz.999").write_text("x"), "not listed"),
        (lambda bundle: (bundle / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
        (lambda bundle: (bundle / "SHA256SUMS").write_text("nonsense\n"), "is not a checksum"),
    ],
)
def test_damage_is_found(damage: Any, word: str, bundle: Path) -> None:
    damage(bundle)
    assert any(word in problem for problem in archive.verify(bundle))


def leave_last_part_out(bundle: Path) -> None:
    """A list of checksums that was cut, and with it the part that it no longer names."""
    last = parts_of(bundle)[-1]
    last.unlink()
    lines = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    (bundle / "SHA256SUMS").write_text("".join(line for line in lines if last.name not in line))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda bundle: flip(parts_of(bundle)[0]), "site.tar.xz.000 is damaged"),
        (
            lambda bundle: parts_of(bundle)[0].write_bytes(parts_of(bundle)[0].read_bytes()[:-1]),
            "site.tar.xz.000 is damaged",
        ),
        (lambda bundle: parts_of(bundle)[-1].unlink(), "is missing; copy it again"),
        (lambda bundle: (bundle / "SHA256SUMS").unlink(), "SHA256SUMS is missing; copy it again"),
        (
            lambda bundle: (bundle / "SHA256SUMS").write_text(""),
            "SHA256SUMS does not list manifest.json",
        ),
        (lambda bundle: (bundle / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda bundle: (bundle / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (
            lambda bundle: (bundle / "site.tar.xz.999").write_text("x"),
            "site.tar.xz.999 is not part of this bundle",
        ),
        (leave_last_part_out, "SHA256SUMS does not list site.tar.xz."),
    ],
)
def test_unpack_refuses_damage_and_writes_nothing(
    damage: Any, words: str, bundle: Path, tmp_path: Path
) -> None:
    damage(bundle)
    done = unpack(bundle, tmp_path / "there")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("python_version", "2.7", "the bundle is for Python 2.7"),
        ("machine", "s390x", "the bundle is for s390x CPUs"),
        ("host_must_have", {"packaging": "0.0"}, "with packaging 0.0"),
        ("host_must_have", {"no-such-thing": "1"}, "not installed"),
    ],
)
def test_unpack_refuses_another_host(
    key: str, value: Any, words: str, bundle: Path, tmp_path: Path
) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, key: value}))
    archive.write_checksums(bundle)
    done = unpack(bundle, tmp_path / "there")
    assert done.returncode == 1
    assert words in done.stderr


def test_output_must_be_empty(bundle: Path) -> None:
    with pytest.raises(UsageError, match="not empty"):
        make_bundle(
            host(), BundlePlan(("two",), 1), bundle, download_folder=bundle, fetch=lambda _r: ()
        )


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    arguments = parser.parse_args(["bundle", *words])
    return int(arguments.run(arguments))


def test_inventory_reads_this_python(capsys: Any, tmp_path: Path) -> None:
    assert command("inventory") == 0
    path = tmp_path / "host.json"
    path.write_text(capsys.readouterr().out)
    inventory = read_inventory(path)
    assert inventory.python_version == MARKERS["python_version"]
    assert "pytest" in inventory.installed


def test_inventory_script_needs_the_standard_library_alone(capsys: Any, tmp_path: Path) -> None:
    assert command("inventory", "--show-script") == 0
    script = tmp_path / "inventory.py"
    script.write_text(capsys.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["markers"]["python_version"] == MARKERS["python_version"]


@pytest.mark.parametrize("content", [None, "[]", "{", '{"schema_version": 2}'])
def test_bad_inventory_is_one_clear_error(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigFileError, match=r"inventory\.py > host\.json"):
        read_inventory(path)


def test_verify_command_says_yes_and_no(bundle: Path, capsys: Any) -> None:
    assert command("verify", str(bundle)) == 0
    flip(parts_of(bundle)[0])
    assert command("verify", str(bundle)) == 10
    assert parts_of(bundle)[0].name in capsys.readouterr().err


def test_make_wants_one_source_of_requirements(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either --requirement"):
        command("make", "--inventory", str(tmp_path / "x"), "--output", str(tmp_path / "y"))


@pytest.mark.slow
def test_real_bundle_of_a_tiny_wheel_through_pip(tmp_path: Path, capsys: Any) -> None:
    assert command("inventory") == 0
    inventory = json.loads(capsys.readouterr().out)
    inventory["installed"].pop("pluggy", None)
    inventory["installed"].pop("iniconfig", None)
    (tmp_path / "host.json").write_text(json.dumps(inventory))
    bundle = tmp_path / "bundle"
    words = [
        "--inventory",
        str(tmp_path / "host.json"),
        "--output",
        str(bundle),
        "--part-size",
        "4000",
    ]
    assert command("make", *words, "--requirement", "pytest") == 0
    carried = json.loads((bundle / "manifest.json").read_text())["carried"]
    assert set(carried) == {"pytest", "pluggy", "iniconfig"}
    assert command("verify", str(bundle)) == 0
    assert len(parts_of(bundle)) > 10
    assert unpack(bundle, tmp_path / "there").returncode == 0
    assert (tmp_path / "there" / "pluggy" / "__init__.py").is_file()


def test_pip_takes_the_wheel_that_fits_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    for tag in ("cp311-cp311-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_17_x86_64"):
        wheel_file(index, "one", {"one.py": ""}).rename(index / f"one-1.0-{tag}.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    inventory = host().model_copy(update={"markers": {**MARKERS, "python_version": "3.12"}})
    fetcher = PipFetcher(tmp_path / "cache", tmp_path, inventory)
    (wheel,) = fetcher((Requirement("one==1.0"),))
    assert "-cp312-" in wheel.path.name
    with pytest.raises(DownloadError, match=r"no wheel for one==2\.0 on Python 3\.12"):
        fetcher((Requirement("one==2.0"),))


@pytest.mark.slow
def test_pip_s_own_words_reach_the_user(tmp_path: Path) -> None:
    fetcher = PipFetcher(tmp_path / "cache", tmp_path, host())
    with pytest.raises(DownloadError, match=r"pluggy==0\.0\.0"):
        fetcher((Requirement("pluggy==0.0.0"),))


def test_inventory_module_is_found_without_importing_it() -> None:
    assert importlib.util.find_spec("k3perf_probe.inventory") is not None
