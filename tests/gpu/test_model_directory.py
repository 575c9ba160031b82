"""``materialise``: a committed config.json becomes a directory that vLLM's tokenizer
loader takes, once per content.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from k3perf.engine.model_directory import materialise, word_level_tokenizer
from k3perf.errors import ConfigFileError

MODELS = Path(__file__).parents[2] / "perf_tests" / "models"
SERVED = sorted(path.parent for path in MODELS.glob("*/config.json"))


def source(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": 64, "max_position_embeddings": 512, **config})
    )
    return folder


@pytest.mark.parametrize("model", SERVED, ids=[path.name for path in SERVED])
def test_every_committed_model_gets_a_tokenizer_of_its_vocabulary(
    model: Path, tmp_path: Path
) -> None:
    made = materialise(model, tmp_path)
    config = json.loads((made / "config.json").read_text())
    size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    vocabulary = json.loads((made / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(size))
    assert (made / "config.json").read_bytes() == (model / "config.json").read_bytes()
    for token in ("bos_token", "eos_token", "unk_token"):
        word = json.loads((made / "tokenizer_config.json").read_text())[token]
        assert word in vocabulary
    text = config.get("text_config", config)
    if "eos_token_id" in text:
        assert vocabulary["</s>"] == text["eos_token_id"]


def test_everybody_may_read_the_copy(tmp_path: Path) -> None:
    """An exported one is served by whoever the deployment runs as."""
    made = materialise(source(tmp_path / "tiny"), tmp_path / "cache")
    assert made.stat().st_mode & 0o777 == 0o755


def test_same_content_is_made_once_and_changed_content_elsewhere(tmp_path: Path) -> None:
    model = source(tmp_path / "model")
    first = materialise(model, tmp_path / "cache")
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    assert materialise(model, tmp_path / "cache") == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == stamp
    (model / "config.json").write_text(json.dumps({"vocab_size": 65}))
    second = materialise(model, tmp_path / "cache")
    assert second != first
    assert len(json.loads((second / "tokenizer.json").read_text())["model"]["vocab"]) == 65


def test_shipped_tokenizer_wins(tmp_path: Path) -> None:
    model = source(tmp_path / "model")
    (model / "tokenizer.json").write_text('{"own": true}')
    assert json.loads((materialise(model, tmp_path / "cache") / "tokenizer.json").read_text()) == {
        "own": True
    }


def test_two_at_once_agree_and_leave_no_scratch(tmp_path: Path) -> None:
    model = source(tmp_path / "model")
    cache = tmp_path / "cache"
    barrier = threading.Barrier(4)
    made: list[Path] = []

    def make() -> None:
        barrier.wait()
        made.append(materialise(model, cache))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert len(made) == 4
    assert [path.name for path in cache.iterdir()] == [made[0].name]


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        (None, "file not found"),
        ("{", "is not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('{"vocab_size": "many"}', "vocab_size"),
    ],
)
def test_bad_source_is_one_clear_error(content: str | None, needle: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content)
    with pytest.raises(ConfigFileError, match=needle):
        materialise(model, tmp_path / "cache")
    cache = tmp_path / "cache"
    assert not cache.exists() or not list(cache.iterdir())


def test_tokenizer_words_are_the_documented_ones() -> None:
    assert list(word_level_tokenizer(5)["model"]["vocab"]) == ["<unk>", "<s>", "</s>", "t3", "t4"]
