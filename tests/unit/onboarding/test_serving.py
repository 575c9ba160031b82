"""A deployment's own words to arguments: command lines, configuration files, manifests."""

from __future__ import annotations

import pytest
import yaml

from k3perf.config.suite import load_suite
from k3perf.errors import UsageError
from k3perf.onboarding.serving import from_command
from k3perf.onboarding.sources import from_file, serving_of
from k3perf.onboarding.suite_files import Machine, draft, target_name
from k3perf.onboarding.write import has_pytest_configuration, write_suite, write_surroundings


def test_every_form_of_an_argument() -> None:
    found = from_command(
        "VLLM_USE_X=1 vllm serve org/Model-7B -tp 2 --max-num-seqs 64 --kv-cache-dtype=fp8"
        " --no-enable-prefix-caching --enforce-eager --compilation-config.mode 3 -O2"
        ' --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
        " --cudagraph-capture-sizes 1 2 4 --gpu-memory-utilization 0.9 --trust-remote-code"
        " --host 0.0.0.0 --port 8000 --served-model-name a b"
    )
    assert found.model == "org/Model-7B"
    assert found.environment == {"VLLM_USE_X": "1"}
    assert found.parallelism == {"tensor": 2}
    assert found.rank_count == 2
    assert found.trust_remote_code
    assert found.arguments == {
        "compilation_config": {"mode": 3},
        "cudagraph_capture_sizes": [1, 2, 4],
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.9,
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 64,
        "optimization_level": 2,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    left = " ".join(found.notes)
    assert "--host" in left
    assert "--port" in left
    assert "--served-model-name" in left


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve --model m --max-num-seqs 8",
        "python -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 8",
        "/opt/vllm/bin/vllm serve m --max-num-seqs=8",
        "docker run --gpus all vllm/vllm-openai serve m --max-num-seqs 8 # tuned in May",
    ],
)
def test_every_way_to_start_the_server(command: str) -> None:
    found = from_command(command)
    assert (found.model, found.arguments) == ("m", {"max_num_seqs": 8})


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("vllm serve --max-num-seqs 8", "names no model"),
        ("vllm serve a b", "'b' follows no option"),
        ("vllm serve 'a", "cannot be split"),
        ("python train.py", "is not a `vllm serve` command"),
        ("vllm serve m --compilation-config 3 --compilation-config.mode 3", "a mapping"),
    ],
)
def test_what_cannot_be_read_is_named(command: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        from_command(command)


def test_no_secret_enters_a_file(tmp_path) -> None:
    secrets = ("sk-1", "hf_2", "hf_3", "sk-4")
    command = (
        f"HF_TOKEN={secrets[1]} AWS_SECRET_ACCESS_KEY={secrets[3]} VLLM_X=1 vllm serve org/m"
        f" --api-key {secrets[0]} --hf-token {secrets[2]} --max-num-seqs 8"
    )
    found = from_command(command)
    write_suite(made(command), tmp_path, "perf_tests")
    texts = "".join(path.read_text() for path in tmp_path.rglob("*.yaml"))
    assert not [secret for secret in secrets if secret in texts]
    assert found.environment == {"VLLM_X": "1"}
    assert "HF_TOKEN is omitted: it may hold a secret" in " ".join(found.notes)


def test_vllms_own_configuration_file(tmp_path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: org/m\nmax-num-seqs: 8\ntensor-parallel-size: 2\nport: 80\n")
    found = serving_of(str(path))
    assert (found.model, found.arguments) == ("org/m", {"max_num_seqs": 8})
    assert found.parallelism == {"tensor": 2}
    # named by a command, whose own arguments come first
    found = serving_of(f"vllm serve --config {path} --max-num-seqs 16")
    assert (found.model, found.arguments) == ("org/m", {"max_num_seqs": 16})


STACK = {
    "servingEngineSpec": {
        "modelSpec": [
            {
                "name": "chat",
                "modelURL": "org/m",
                "vllmConfig": {
                    "maxModelLen": 4096,
                    "tensorParallelSize": 2,
                    "extraArgs": ["--max-num-seqs", "8", "--trust-remote-code"],
                    "v1": 1,
                },
                "env": [{"name": "VLLM_X", "value": "1"}, {"name": "TOKEN", "valueFrom": {}}],
            }
        ]
    }
}
CHART = {
    "image": {
        "command": ["vllm", "serve", "/data/", "--max-num-seqs", "8"],
        "env": [{"name": "VLLM_X", "value": "1"}],
    }
}
MANIFEST = {
    "kind": "Deployment",
    "metadata": {"name": "chat"},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "vllm",
                        "command": ["/bin/sh", "-c"],
                        "args": ["vllm serve org/m --max-num-seqs 8"],
                    }
                ]
            }
        }
    },
}


@pytest.mark.parametrize("document", [STACK, CHART, MANIFEST], ids=["stack", "chart", "manifest"])
def test_helm_values_and_manifests(document, tmp_path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(document))
    found = from_file(path)
    assert found.arguments["max_num_seqs"] == 8
    if document is STACK:
        assert found.arguments == {"max_model_len": 4096, "max_num_seqs": 8}
        assert (found.parallelism, found.environment) == ({"tensor": 2}, {"VLLM_X": "1"})
        assert found.trust_remote_code
        assert any("vllmConfig.v1" in note for note in found.notes)


def test_one_of_several_deployments_is_chosen(tmp_path) -> None:
    spec = STACK["servingEngineSpec"]["modelSpec"][0]
    both = {"modelSpec": [spec, {**spec, "name": "other", "modelURL": "org/other"}]}
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(both))
    with pytest.raises(UsageError, match="holds 2 deployments"):
        serving_of(str(path))
    assert serving_of(f"{path}#other").model == "org/other"
    with pytest.raises(UsageError, match="It has: chat, other"):
        serving_of(f"{path}#third")


CPU = Machine("cpu", "cpu-avx2", cpu_features=("avx2",))


def made(command: str = "vllm serve org/m --max-num-seqs 8", **options):
    return draft(
        from_command(command),
        CPU,
        day="2026-12-01",
        model_config={"vocab_size": 1000},
        name="t",
        **options,
    )


def test_the_written_suite_is_a_suite_with_every_flag(tmp_path) -> None:
    paths = write_suite(made("vllm serve org/m -dp 2 --max-num-seqs 8"), tmp_path, "perf_tests")
    suite = load_suite(tmp_path / "perf_tests")
    (cell,) = suite.cells()
    assert cell.engine_arguments == {"max_num_seqs": 8, "data_parallel_size": 2}
    assert suite.vocabulary_size(cell.target) == 1000
    assert sorted(paths) == [
        "perf_tests/configs/tuned.yaml",
        "perf_tests/models/m/config.json",
        "perf_tests/targets/t.yaml",
        "perf_tests/tolerances.yaml",
        "perf_tests/workloads/first.yaml",
    ]


def test_a_suite_that_vllm_would_refuse_leaves_no_file(tmp_path) -> None:
    with pytest.raises(UsageError, match="max_num_sequences"):
        write_suite(made("vllm serve m --max-num-sequences 8"), tmp_path, "perf_tests")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_suite_stays_as_it_is(tmp_path) -> None:
    write_suite(made(), tmp_path, "perf_tests")
    before = (tmp_path / "perf_tests/targets/t.yaml").read_text()
    with pytest.raises(UsageError, match="exists already"):
        write_suite(made("vllm serve other"), tmp_path, "perf_tests")
    assert (tmp_path / "perf_tests/targets/t.yaml").read_text() == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\n"),
        ("tox.ini", "[pytest]\n"),
        ("setup.cfg", "[tool:pytest]\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\n"),
    ],
)
def test_a_repository_keeps_its_pytest_configuration(name: str, text: str, tmp_path) -> None:
    assert not has_pytest_configuration(tmp_path)
    (tmp_path / name).write_text(text)
    assert has_pytest_configuration(tmp_path)
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    written = write_surroundings(tmp_path, "perf_tests", "t", workflow=True)
    assert written == [".gitignore", ".github/workflows/k3perf.yml"]
    assert (tmp_path / name).read_text() == text
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\n.k3perf/\n"
    assert "@" not in (tmp_path / written[1]).read_text().replace("@", "", 2)
    assert write_surroundings(tmp_path, "perf_tests", "t", workflow=True) == []


def test_target_names() -> None:
    assert target_name("meta-llama/Llama-3.1-8B", "h200") == "llama-3-1-8b-h200"
    assert len(target_name("x" * 200, "cpu-avx512")) <= 48
