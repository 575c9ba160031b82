"""The git repository around the suite: what is checked out, what changed since a
reference, files as they were there. The one place that runs git. Only ``work_tree_at``
writes.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from k3perf.ci.selection import ChangedPath
from k3perf.errors import UsageError, shortened

_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Repository:
    """A work tree. Every method raises UsageError when git is absent or does not know
    the reference.
    """

    root: Path

    def changed_since(self, reference: str) -> tuple[ChangedPath, ...]:
        """Files that differ between the merge base with ``reference`` and the work
        tree, untracked ones included, sorted by path.
        """
        base = self.merge_base(reference)
        fields = self._git("diff", "--name-status", "--no-renames", "-z", base, "--").split(b"\0")[
            :-1
        ]
        found = [
            ChangedPath(_text(path), deleted=status == b"D")
            for status, path in zip(fields[::2], fields[1::2], strict=True)
        ]
        untracked = self._git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]
        found += [ChangedPath(_text(path)) for path in untracked]
        return tuple(sorted(found, key=lambda change: change.path))

    def merge_base(self, reference: str, head: str = "HEAD") -> str:
        """The commit where ``head``, the work tree's branch, left ``reference``."""
        return self._git("merge-base", _checked(reference), _checked(head)).decode("ascii").strip()

    def first_changed_lines(self, base: str, head: str) -> dict[str, int]:
        """The first line of each file of ``head`` that differs from ``base``."""
        text = self._git(
            "diff", "--unified=0", "--no-renames", "--no-color", "--no-ext-diff",
            _checked(base), _checked(head), "--",
        ).decode("utf-8", "replace")  # fmt: skip
        found: dict[str, int] = {}
        path = ""
        for line in text.splitlines():
            if line.startswith("+++ "):
                path = line[6:] if line.startswith("+++ b/") else ""
            match = re.match(r"@@ -\S+ \+(\d+)", line)
            if match and path:
                found.setdefault(path, max(int(match[1]), 1))
        return found

    def work_tree_at(self, folder: Path, commit: str) -> None:
        """A work tree in ``folder`` with ``commit``, made where there is none. This one
        stays as it is.
        """
        if folder.exists():
            Repository(folder)._git("checkout", "--quiet", "--detach", _checked(commit))
        else:
            self._git("worktree", "add", "--quiet", "--detach", str(folder), _checked(commit))

    def first_parents(self, good: str, bad: str) -> tuple[str, ...]:
        """Full hashes from ``good`` to ``bad`` by first parents. Raises UsageError
        where ``good`` is not an ancestor.
        """
        first, last = self.commit(good), self.commit(bad)
        listed = self._git("rev-list", "--first-parent", "--reverse", f"{first}..{last}")
        found = listed.decode("ascii").split()
        if self.merge_base(first, last) != first:
            raise UsageError(
                f"{good} is not an ancestor of {bad}. Give the older commit first, of one branch."
            )
        return (first, *found)

    def commit(self, reference: str) -> str:
        """The full hash of the commit that ``reference`` names."""
        return (
            self._git("rev-parse", "--verify", f"{_checked(reference)}^{{commit}}")
            .decode("ascii")
            .strip()
        )

    def checked_out(self) -> str:
        """The checked-out commit's full hash; with ``-dirty`` when tracked files differ
        from it.
        """
        return (
            self._git("describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*")
            .decode("ascii")
            .strip()
        )

    def folders(self, commit: str, *names: str) -> tuple[str, ...]:
        """Those of the folders that exist at ``commit`` (a full hash)."""
        listed = self._git("ls-tree", "-d", "-z", "--name-only", commit, "--", *names)
        return tuple(_text(name) for name in listed.split(b"\0")[:-1])

    def archive(self, commit: str, *folders: str) -> bytes:
        """Folders as they were at ``commit`` (a full hash), as a tar file's bytes."""
        return self._git("archive", "--format=tar", commit, *folders)

    def read_at(self, commit: str, path: str) -> bytes | None:
        """A file's content at ``commit`` (a full hash); None when it was not there."""
        listed = self._git("ls-tree", "-z", "--full-tree", "--name-only", commit, "--", path)
        return self._git("show", f"{commit}:{path}") if listed else None

    def _git(self, *arguments: str) -> bytes:
        command = ["git", "-C", str(self.root), "-c", "core.quotePath=false", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(
                f"git could not be run in {self.root}: {error}. Install git and run inside the"
                " repository."
            ) from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().replace("\n", " ")
            shown = shortened(" ".join(arguments[:3]))
            raise UsageError(
                f"git {shown} failed in {self.root}: {shortened(said)}. Fetch the reference first;"
                " a shallow clone needs git fetch --unshallow."
            )
        return done.stdout


def _checked(reference: str) -> str:
    """A reference that git cannot take for an option."""
    if reference.startswith("-"):
        raise UsageError(f"{reference!r} is not a git reference. Give a branch, tag or commit.")
    return reference


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
