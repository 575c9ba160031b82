"""Archives are unpacked below their destination and nowhere else, with Python's own
filter and, before 3.11.4, without one.
"""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from k3perf.unpack import extract

# Python 3.12 and later warn where the filter is not used; the own check takes the place
# of Pythons that have none
pytestmark = pytest.mark.filterwarnings(
    "ignore:Python 3.14 will, by default, filter:DeprecationWarning"
)


@pytest.fixture(params=["python's filter", "own check"], autouse=True)
def checker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    present = hasattr(tarfile, "data_filter")
    if request.param == "own check":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not present:
        pytest.skip("this Python has no extraction filter")


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, mode
    entry.size = 4 if kind == tarfile.REGTYPE else 0
    entry.uid, entry.gid, entry.uname = 12345, 12345, "stranger"
    return entry


def unpacked(tmp_path: Path, *members: tarfile.TarInfo, stream: bool = False) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for entry in members:
            archive.addfile(entry, io.BytesIO(b"text"[: entry.size]))
    packed.seek(0)
    there = tmp_path / "there"
    there.mkdir()
    with tarfile.open(fileobj=packed, mode="r|xz" if stream else "r:xz") as archive:
        extract(archive, there)
    return there


@pytest.mark.parametrize("stream", [False, True])
def test_files_folders_and_inner_links_arrive(tmp_path: Path, stream: bool) -> None:
    there = unpacked(
        tmp_path,
        member("a", tarfile.DIRTYPE, mode=0o777),
        member("a/file", mode=0o666),
        member("a/run", mode=0o4755),
        member("a/soft", tarfile.SYMTYPE, "file"),
        member("hard", tarfile.LNKTYPE, "a/file"),
        stream=stream,
    )
    assert (there / "a" / "soft").read_text() == (there / "hard").read_text() == "text"
    assert stat.S_IMODE((there / "a" / "file").stat().st_mode) & 0o022 == 0
    assert stat.S_IMODE((there / "a" / "run").stat().st_mode) == 0o755
    assert (there / "a" / "file").stat().st_uid == tmp_path.stat().st_uid


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("out", tarfile.SYMTYPE, "../../elsewhere")],
        [member("out", tarfile.SYMTYPE, "/etc/passwd")],
        [member("out", tarfile.LNKTYPE, "../../etc/passwd")],
        [member("way", tarfile.SYMTYPE, ".."), member("way/out")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("disk", tarfile.CHRTYPE)],
    ],
    ids=lambda members: f"{members[-1].name}-{members[0].linkname}",
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_would_land_elsewhere_is_refused(
    tmp_path: Path, members: list[tarfile.TarInfo], stream: bool
) -> None:
    with pytest.raises(tarfile.TarError):
        unpacked(tmp_path, *members, stream=stream)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_an_absolute_name_never_leaves_the_destination(tmp_path: Path) -> None:
    try:  # Python's filter strips the slash, the own check refuses
        there = unpacked(tmp_path, member(f"{tmp_path}/out"))
        assert (there / str(tmp_path / "out").lstrip("/")).is_file()
    except tarfile.TarError:
        pass
    assert not (tmp_path / "out").exists()
