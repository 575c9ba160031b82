"""The file and command that start an engine: what is tested is what is deployed."""

from pathlib import Path

import yaml

from k3perf.config.suite import load_suite
from k3perf.engine.render import PROBE_EXTENSION, deployment, measured_launch, native_config


def cell(repository, target_name, config_name):
    suite = load_suite(repository / "perf_tests")
    target = suite.target(target_name)
    return target, suite.engine_arguments(target, suite.config(config_name))


def test_native_file_has_vllm_spelling_and_every_argument(repository):
    _, arguments = cell(repository, "cpu-hybrid", "fp8_kv")
    data = yaml.safe_load(native_config(arguments, "some/model"))
    assert data["model"] == "some/model"
    assert data["kv-cache-dtype"] == "fp8"
    assert {key.replace("-", "_") for key in data} == set(arguments) | {"model"}


def test_false_and_nested_values_survive():
    data = yaml.safe_load(
        native_config({"enable_prefix_caching": False, "compilation_config": {"mode": 0}}, "m")
    )
    assert data["enable-prefix-caching"] is False
    assert data["compilation-config"] == {"mode": 0}


def test_measured_engine_runs_the_deployed_file(repository):
    target, arguments = cell(repository, "cpu-hybrid", "fp8_kv")
    launch = measured_launch(
        target,
        arguments,
        model="m",
        engine_python=Path("/opt/engine/bin/python"),
        python_path="/probe",
        cache_directory=Path("/cache"),
    )
    assert launch.config_file_text == deployment(target, arguments, "m").config_file_text
    assert yaml.safe_load(launch.config_file_text)["load-format"] == "dummy"
    argv = launch.rendered_argv(config_file="/run/engine.yaml", port=4321)
    assert argv[0] == "/opt/engine/bin/python"
    assert argv[argv.index("--config") + 1] == "/run/engine.yaml"
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "4321"
    assert argv[argv.index("--worker-extension-cls") + 1] == PROBE_EXTENSION


def test_a_checkpoint_is_deployed_with_its_weights(repository):
    target, arguments = cell(repository, "b300-k3", "default")
    assert "load-format" not in deployment(target, arguments, "m").config_file_text


def test_dev_mode_never_reaches_a_deployment(repository):
    target, arguments = cell(repository, "cpu-hybrid", "default")
    deployed = deployment(target, arguments, "m")
    assert "VLLM_SERVER_DEV_MODE" not in deployed.environment
    assert "worker-extension" not in deployed.config_file_text
    assert "--trust-remote-code" not in deployed.command


def test_remote_code_only_where_a_target_says_so(repository):
    target, arguments = cell(repository, "cpu-hybrid", "default")
    trusting = target.model_copy(
        update={"model": target.model.model_copy(update={"trust_remote_code": True})}
    )
    assert "--trust-remote-code" in deployment(trusting, arguments, "m").command
