"""One commit under several texts: what counts as the same one, and what the commands
make of it.
"""

from __future__ import annotations

import pytest

from k3perf.ci.commits import distinct_commits, same_commit

FULL = "9bf9beb" + "1" * 33
OTHER = "9bf9beb" + "2" * 33


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (FULL, FULL, True),
        (FULL[:7], FULL, True),
        (FULL[:12], FULL[:7], True),
        (f"{FULL[:7]}-dirty", f"{FULL}-dirty", True),
        (FULL, f"{FULL}-dirty", False),
        (FULL[:7], f"{FULL}-dirty", False),
        (FULL[:6], FULL, False),
        ("9", FULL, False),
        (FULL, OTHER, False),
        (FULL[:8], OTHER, False),
        ("release", "release-2", False),
        ("release", "release", True),
        ("", "unknown", True),
        ("", FULL, False),
        ("-dirty", f"{FULL}-dirty", False),
        ("unknown", FULL, False),
    ],
)
def test_a_short_hash_names_the_commit_it_begins(first: str, second: str, same: bool) -> None:
    assert same_commit(first, second) is same
    assert same_commit(second, first) is same


def test_each_commit_counts_once_by_its_longest_text_in_the_order_given() -> None:
    assert distinct_commits(["beef", FULL[:7], FULL, FULL[:9], f"{FULL[:7]}-dirty", ""]) == (
        "beef",
        FULL,
        f"{FULL[:7]}-dirty",
        "unknown",
    )
    assert distinct_commits([FULL, OTHER, FULL[:7]]) == (FULL, OTHER), (
        "a hash too short to tell two apart joins them to one no more"
    )
    assert distinct_commits([]) == ()
