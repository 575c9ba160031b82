"""The journal of a tuning run: resumable after any end, and never two readings of one trial."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.tuning import Fate, TuningReading, TuningTrial
from k3perf.store.tuning_journal import TuningJournal, read_readings, read_result

FINGERPRINT = {"target": "simulated", "commit": "abc"}
ROOT = Path(__file__).parents[3]

TUNER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from k3perf.store.tuning_journal import TuningJournal, write_result
from k3perf.tune.strategy import RunNames, Tuning
from tests.unit.tune.simulated_engine import SimulatedEngine, plan

directory = Path({directory!r})
engine = SimulatedEngine(11, knee=64)
def measured(trial):
    with open(directory / "begun.txt", "a") as begun:
        begun.write(trial.key + "\\n")
    time.sleep({pause})
    return engine(trial)
with TuningJournal(directory, run_id="run", fingerprint={fingerprint!r}) as journal:
    names = RunNames(journal.run_id, "t", "c", "w", {fingerprint!r})
    result = Tuning(plan(), journal.source(measured), names).run()
write_result(directory, result)
"""


def tuner(directory: Path, pause: float = 0.005) -> subprocess.Popen:
    directory.mkdir(exist_ok=True)
    text = TUNER.format(
        root=str(ROOT), directory=str(directory), pause=pause, fingerprint=FINGERPRINT
    )
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT
    )


def test_killed_at_random_moments_it_ends_with_the_same_choice(tmp_path):
    """kill -9 while sessions run. What was read is not measured again."""
    assert tuner(tmp_path / "whole", 0.0).wait(60) == 0
    whole = read_result(tmp_path / "whole")
    draw, killed, kills = random.Random(7), tmp_path / "killed", 0
    journal = killed / "tuning.jsonl"
    while kills < 20:
        before = journal.stat().st_size if journal.exists() else 0
        process = tuner(killed)
        while process.poll() is None and (not journal.exists() or journal.stat().st_size <= before):
            time.sleep(0.002)  # each life measures at least one session
        if kills < 6:
            time.sleep(draw.uniform(0, 0.12))
            process.send_signal(signal.SIGKILL)
        status = process.wait(60)
        if status == 0:
            break
        assert status == -signal.SIGKILL, "a resumed run failed by itself"
        kills += 1
    assert 4 <= kills <= 6
    resumed = read_result(killed)
    assert resumed == whole
    keys = [reading.trial.key for reading in read_readings(killed)]
    assert len(keys) == len(set(keys)) == whole.session_count
    begun = (killed / "begun.txt").read_text().split("\n")[:-1]
    again = len(begun) - len(set(begun))
    assert again <= kills  # only a session that the kill itself interrupted


def trial(block=0):
    return TuningTrial("screen", block, {"max_num_seqs": 8})


def reading(block=0):
    return TuningReading(trial(block), Fate.MEASURED, 4.0, 4, 8, {"output_tokens_per_s": 10.0})


def open_journal(directory, **changes):
    return TuningJournal(directory, run_id="r", fingerprint={**FINGERPRINT, **changes})


def test_a_known_trial_is_not_measured_again(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.source(lambda _: reading())(trial())
    with open_journal(tmp_path) as journal:
        found = journal.source(lambda _: pytest.fail("measured twice"))(trial())
    assert found == reading()


def test_another_fingerprint_is_refused(tmp_path):
    open_journal(tmp_path).close()
    with pytest.raises(UsageError, match="measured with commit 'abc', this run has 'def'"):
        open_journal(tmp_path, commit="def")


def test_a_second_writer_is_refused(tmp_path):
    with open_journal(tmp_path), pytest.raises(UsageError, match="another process is writing"):
        open_journal(tmp_path)


def test_a_partly_written_line_is_cut_off(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.source(lambda _: reading())(trial())
    path = tmp_path / "tuning.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"reading","con')
    with open_journal(tmp_path) as journal:
        assert len(journal.known) == 1
        journal.source(lambda _: reading(1))(trial(1))
    assert len(read_readings(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"\0\0", b"[]", b'{"kind":"reading","content":{}}'])
def test_a_damaged_line_is_named(tmp_path, damage):
    open_journal(tmp_path).close()
    path = tmp_path / "tuning.jsonl"
    path.write_bytes(path.read_bytes() + damage + b"\n")
    with pytest.raises(ConfigFileError, match="line 2"):
        open_journal(tmp_path)


def test_a_repeated_line_is_refused(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.source(lambda _: reading())(trial())
    path = tmp_path / "tuning.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    with pytest.raises(ConfigFileError, match="appears twice"):
        open_journal(tmp_path)


def test_a_foreign_file_is_not_a_journal(tmp_path):
    (tmp_path / "tuning.jsonl").write_text(json.dumps({"kind": "run"}) + "\n")
    with pytest.raises(ConfigFileError, match="line 1"):
        open_journal(tmp_path)
