from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Acceptance, Baseline, digest_of
from k3perf.store.baselines import (
    Proposal,
    baseline_path,
    read_baseline,
    read_baseline_file,
    read_proposals,
    read_target_baselines,
    read_waivers,
    write_baseline,
    write_proposal,
)

ACCEPTANCE = Acceptance(
    accepted_by="ann",
    reason="first numbers",
    accepted_at_utc="2026-01-01T00:00:00Z",
    commit="c0",
    run_ids=("r1",),
)


def baseline(config: str = "default") -> Baseline:
    made = Baseline.model_validate(
        {
            "schema_version": 1,
            "target": "gpu",
            "config": config,
            "hardware_class": "h200",
            "versions": {"vllm": "0.32.0"},
            "resolved_config": {"block_size": 16, "list": [1, None], "ratio": 0.9},
            "exact": (),
            "workloads": (
                {
                    "workload": "chat",
                    "plan_digest": "p",
                    "metrics": (
                        {
                            "metric": "ttft_mean_ms",
                            "unit": "ms",
                            "basis": "absolute",
                            "sessions": (
                                {
                                    "session_id": "s",
                                    "value": 0.1 + 0.2,
                                    "round_values": (1e-300, 1e300),
                                },
                            ),
                            "anchor_value": 0.1,
                        },
                    ),
                },
            ),
            "acceptance": ACCEPTANCE,
            "anchor_acceptance": ACCEPTANCE,
            "digest": "",
        }
    )
    return made.model_copy(update={"digest": digest_of(made)})


def test_a_baseline_survives_the_disk(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    assert path == baseline_path(tmp_path, "gpu", "default")
    assert read_baseline(tmp_path, "gpu", "default") == baseline()
    assert [entry.name for entry in path.parent.iterdir()] == ["default.json"]


def test_environments_survive_the_disk_and_are_part_of_the_digest(tmp_path: Path) -> None:
    known = {
        **baseline().model_dump(),
        "environments": [{"values": {"python": "3.11.7"}, "session_ids": ["s"]}],
    }
    path = write_baseline(tmp_path, Baseline.model_validate(known))
    stored = read_baseline_file(path)
    assert stored is not None
    assert [(part.values, part.session_ids) for part in stored.environments] == [
        ({"python": "3.11.7"}, ("s",))
    ]
    path.write_text(path.read_text().replace("3.11.7", "3.11.2"))
    with pytest.raises(ConfigFileError, match="edited by hand"):
        read_baseline_file(path)
    assert "environments" not in write_baseline(tmp_path, baseline()).read_text()


def test_files_from_before_ranks_were_counted_stay_valid_and_are_written_as_they_were(
    tmp_path: Path,
) -> None:
    """The committed baselines are such files, digest and all."""
    text = write_baseline(tmp_path, baseline()).read_text()
    assert "rank_count" not in text
    (old,) = baseline().workloads[0].metrics
    assert old.rank_counts == frozenset()
    counted = old.model_copy(
        update={"sessions": (old.sessions[0].model_copy(update={"rank_count": 2}),)}
    )
    fresh = baseline().model_copy(update={"exact": (counted,)})
    read = read_baseline_file(write_baseline(tmp_path, fresh))
    assert read is not None
    assert read.exact[0].rank_counts == {2}
    path = baseline_path(tmp_path, "gpu", "default")
    path.write_text(path.read_text().replace('"rank_count": 2', '"rank_count": 1'))
    with pytest.raises(ConfigFileError, match="edited by hand"):
        read_baseline_file(path)


def test_the_writer_stamps_the_digest(tmp_path: Path) -> None:
    write_baseline(tmp_path, baseline().model_copy(update={"digest": "wrong"}))
    assert read_baseline(tmp_path, "gpu", "default") == baseline()


def test_no_file_is_none_and_a_target_is_read_in_order(tmp_path: Path) -> None:
    assert read_baseline(tmp_path, "gpu", "default") is None
    assert read_target_baselines(tmp_path, "gpu") == ()
    write_baseline(tmp_path, baseline("b"))
    write_baseline(tmp_path, baseline("a"))
    assert [found.config for found in read_target_baselines(tmp_path, "gpu")] == ["a", "b"]


def test_every_hand_edit_is_detected(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    original = path.read_text()
    edits = [
        ('"ann"', '"bob"'),
        ("0.30000000000000004", "0.3"),
        ('"block_size":16', '"block_size":17'),
        ('"value"', '"value"'),
    ]
    for old, new in edits[:3]:
        text = (
            original.replace(old, new)
            if old in original
            else original.replace(old.replace(":", ": "), new.replace(":", ": "))
        )
        assert text != original
        path.write_text(text)
        with pytest.raises(ConfigFileError, match=r"edited by hand.*baseline accept"):
            read_baseline(tmp_path, "gpu", "default")
    path.write_text(json.dumps(json.loads(original)))
    assert read_baseline(tmp_path, "gpu", "default") == baseline()


def test_truncated_foreign_and_unreadable_files_are_errors_with_a_next_step(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    whole = path.read_text()
    for cut in (0, 1, 50, len(whole) // 2, len(whole) - 4):
        path.write_text(whole[:cut])
        with pytest.raises(ConfigFileError, match=r"(cut short|is empty).*Restore"):
            read_baseline(tmp_path, "gpu", "default")
    path.write_text(
        whole.replace('"schema_version": 1', '"schema_version": 7').replace(
            '"schema_version":1', '"schema_version":7'
        )
    )
    with pytest.raises(ConfigFileError, match="release that wrote"):
        read_baseline(tmp_path, "gpu", "default")
    path.write_text("[]")
    with pytest.raises(ConfigFileError, match="unknown to this release"):
        read_baseline(tmp_path, "gpu", "default")
    data = json.loads(whole)
    data["workloads"][0]["metrics"][0]["basis"] = "guess"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigFileError) as caught:
        read_baseline(tmp_path, "gpu", "default")
    assert (caught.value.key, caught.value.value) == ("workloads.0.metrics.0.basis", "guess")
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigFileError, match="cannot be read"):
        read_baseline(tmp_path, "gpu", "default")


def test_a_renamed_file_is_no_baseline_of_its_new_name(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, baseline())
    path.rename(path.with_name("other.json"))
    assert read_baseline(tmp_path, "gpu", "default") is None
    with pytest.raises(ConfigFileError, match="gpu/default, not of gpu/other"):
        read_baseline(tmp_path, "gpu", "other")


def test_proposals_wait_apart_from_baselines(tmp_path: Path) -> None:
    assert read_proposals(tmp_path) == ()
    proposal = Proposal(
        schema_version=1, new_anchor=False, objections=("loud",), baseline=baseline()
    )
    path = write_proposal(tmp_path, proposal)
    assert read_proposals(tmp_path) == ((path, proposal),)
    path.write_text("{}")
    with pytest.raises(ConfigFileError, match="propose again"):
        read_proposals(tmp_path)


GOOD = """
- {target: gpu, config: default, workload: chat, metric: ttft_mean_ms, owner: ann, build: 0.32, reason: vLLM issue 1, expires_on: 2026-07-01}
"""


def test_waivers_are_read_with_days_and_builds_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "waivers.yaml"
    assert read_waivers(path) == ()
    path.write_text("")
    assert read_waivers(path) == ()
    path.write_text(GOOD)
    assert [(found.owner, found.build, found.expires_on) for found in read_waivers(path)] == [
        ("ann", "0.32", "2026-07-01")
    ]
    path.write_text(GOOD.replace("build: 0.32", "build: 0.30, largest_loss_ratio: 0.1"))
    assert [(found.build, found.largest_loss_ratio) for found in read_waivers(path)] == [
        ("0.30", 0.1)
    ]  # as a number it would be 0.3


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (GOOD.replace("owner: ann, ", ""), "0.owner"),
        (GOOD.replace("expires_on: 2026-07-01", "expires_on: never"), "0.expires_on"),
        (GOOD.replace("2026-07-01", "'2026-02-31'"), "0.expires_on"),
        (GOOD.replace("owner", "Owner"), "0.owner"),
        ("- 5", "0"),
        ("{a: 1}", ""),
        ("a: [", "line 2"),
        (GOOD.replace("owner: ann", "owner: ann, owner: bob"), "line 2"),
    ],
)
def test_bad_waivers_name_the_entry_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as caught:
        read_waivers(path)
    assert caught.value.key == key
