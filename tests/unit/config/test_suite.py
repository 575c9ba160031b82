"""The declared suite: what it resolves to, and what each kind of bad input is told."""

from pathlib import Path

import pytest
import yaml

from k3perf.config.suite import load_suite
from k3perf.errors import ConfigFileError, ExitStatus, UnknownNameError, UsageError
from k3perf.records.metric_definitions import METRICS, Comparison


def rewrite(path: Path, **changes):
    data = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    path.write_text(yaml.safe_dump(data))


def problem_of(suite_root: Path) -> ConfigFileError:
    with pytest.raises(ConfigFileError) as caught:
        load_suite(suite_root)
    assert caught.value.exit_status is ExitStatus.USAGE
    return caught.value


def test_shipped_suite_loads_and_every_cell_id_is_unique(repository):
    suite = load_suite(repository / "perf_tests")
    ids = [cell.cell_id for cell in suite.cells()]
    assert "cpu-hybrid-fp8_kv-chat" in ids
    assert len(ids) == len(set(ids))


def test_arguments_are_root_then_target_then_config(repository):
    suite = load_suite(repository / "perf_tests")
    arguments = suite.engine_arguments(suite.target("cpu-hybrid"), suite.config("seqs_down"))
    assert arguments["max_model_len"] == 4096  # the root's
    assert arguments["enforce_eager"] is True  # the target's
    assert arguments["max_num_seqs"] == 8  # the config's own, over the target's 32


def test_combination_applies_every_part(repository):
    suite = load_suite(repository / "perf_tests")
    arguments = suite.engine_arguments(suite.target("cpu-hybrid"), suite.config("throughput_combo"))
    assert (arguments["max_num_seqs"], arguments["max_num_batched_tokens"]) == (128, 4096)


def test_children_hold_extensions_and_combinations(repository):
    suite = load_suite(repository / "perf_tests")
    assert suite.children("seqs_up") == ("throughput_combo",)
    assert "fp8_kv" in suite.children("default")


def test_refused_and_equivalent_configs_are_left_out_with_a_reason(suite_copy):
    target = suite_copy / "targets" / "cpu-gqa.yaml"
    rewrite(
        target,
        refusals=[{"when": {"kv_cache_dtype": "fp8"}, "reason": "this processor has no FP8"}],
        equivalences=[{"configs": ["block_size_32", "block_size_64"], "reason": "both become 64"}],
    )
    suite = load_suite(suite_copy)
    ids = {cell.config.name for cell in suite.cells(("cpu-gqa",))}
    assert "block_size_32" in ids
    assert not {"fp8_kv", "block_size_64"} & ids
    reasons = {left.config: left.reason for left in suite.left_out(("cpu-gqa",))}
    assert reasons["fp8_kv"] == "this processor has no FP8"
    assert "block_size_32" in reasons["block_size_64"]


def test_unknown_key_names_the_nearest(suite_copy):
    path = suite_copy / "configs" / "fp8_kv.yaml"
    path.write_text(path.read_text().replace("extends:", "extend:"))
    error = problem_of(suite_copy)
    assert (error.path, error.key) == (path, "extend")
    assert "Did you mean 'extends'?" in str(error)


def test_nested_unknown_key(suite_copy):
    path = suite_copy / "targets" / "cpu-gqa.yaml"
    path.write_text(path.read_text().replace("hardware_class:", "hardware_clas:"))
    error = problem_of(suite_copy)
    assert error.key == "hardware.hardware_clas"
    assert "hardware_class" in str(error)


def test_key_written_twice(suite_copy):
    path = suite_copy / "configs" / "fp8_kv.yaml"
    path.write_text(path.read_text() + "name: again\n")
    assert "written twice" in str(problem_of(suite_copy))


def test_unknown_vllm_argument_names_the_nearest(suite_copy):
    rewrite(suite_copy / "configs" / "fp8_kv.yaml", change={"kv_cache_dtyp": "fp8"})
    error = problem_of(suite_copy)
    assert error.key == "change.kv_cache_dtyp"
    assert error.value == "fp8"
    assert "kv_cache_dtype" in str(error)


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"kv_cache_dtype": "fp9"}, "not among vLLM's choices"),
        ({"enable_prefix_caching": "yes"}, "is a flag"),
        ({"max_num_seqs": True}, "takes a value"),
        ({"port": 8000}, "set by the harness"),
    ],
)
def test_value_that_cannot_be(suite_copy, change, needle):
    rewrite(suite_copy / "configs" / "fp8_kv.yaml", change=change)
    assert needle in str(problem_of(suite_copy))


def test_two_changes_in_one_config(suite_copy):
    rewrite(
        suite_copy / "configs" / "fp8_kv.yaml", change={"kv_cache_dtype": "fp8", "max_num_seqs": 4}
    )
    text = str(problem_of(suite_copy))
    assert "exactly one change" in text
    assert "kv_cache_dtype, max_num_seqs" in text


def test_missing_parent(suite_copy):
    rewrite(suite_copy / "configs" / "fp8_kv.yaml", extends="nobody")
    error = problem_of(suite_copy)
    assert (error.key, error.value) == ("extends", "nobody")


def test_cycle_of_parents(suite_copy):
    rewrite(suite_copy / "configs" / "fp8_kv.yaml", extends="seqs_up")
    rewrite(suite_copy / "configs" / "seqs_up.yaml", extends="fp8_kv")
    assert "cycle" in str(problem_of(suite_copy))


def test_duplicate_name(suite_copy):
    rewrite(suite_copy / "configs" / "seqs_up.yaml", name="fp8_kv")
    error = problem_of(suite_copy)
    assert error.key == "name"
    assert "already taken by fp8_kv.yaml" in str(error)


def test_combination_of_a_combination_is_refused(suite_copy):
    rewrite(suite_copy / "configs" / "throughput_combo.yaml", combines=["seqs_up", "default"])
    assert "not an approved single change" in str(problem_of(suite_copy))


def test_combination_that_sets_an_argument_twice(suite_copy):
    rewrite(suite_copy / "configs" / "throughput_combo.yaml", combines=["seqs_up", "seqs_down"])
    assert "max_num_seqs" in str(problem_of(suite_copy))


@pytest.mark.parametrize("value", [-0.1, float("nan"), 1.5])
def test_tolerance_that_cannot_be(suite_copy, value):
    path = suite_copy / "tolerances.yaml"
    data = yaml.safe_load(path.read_text())
    data["defaults"]["tpot_mean_ms"] = {"loss_ratio": value}
    path.write_text(yaml.safe_dump(data))
    error = problem_of(suite_copy)
    assert error.key == "defaults.tpot_mean_ms.loss_ratio", str(error)


def test_tolerance_of_both_kinds(suite_copy):
    path = suite_copy / "tolerances.yaml"
    data = yaml.safe_load(path.read_text())
    data["defaults"]["tpot_mean_ms"] = {"loss_ratio": 0.1, "loss_absolute": 1}
    path.write_text(yaml.safe_dump(data))
    assert "exactly one" in str(problem_of(suite_copy))


def test_missing_model_directory(suite_copy):
    rewrite(
        suite_copy / "targets" / "cpu-gqa.yaml",
        model={"directory": "models/nowhere", "weights": "dummy"},
    )
    error = problem_of(suite_copy)
    assert (error.key, error.value) == ("model.directory", "models/nowhere")


def test_unknown_workload_of_a_target(suite_copy):
    rewrite(suite_copy / "targets" / "cpu-gqa.yaml", workloads=["nothing"])
    assert problem_of(suite_copy).value == "nothing"


@pytest.mark.parametrize("text", ["{", "a: [1", "- 1\n- 2\n", ""])
def test_truncated_or_foreign_yaml(suite_copy, text):
    (suite_copy / "configs" / "fp8_kv.yaml").write_text(text)
    assert problem_of(suite_copy).path.name == "fp8_kv.yaml"


def test_binary_file(suite_copy):
    (suite_copy / "configs" / "fp8_kv.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-16" in str(problem_of(suite_copy))


def test_python_tags_are_not_executed(suite_copy):
    (suite_copy / "configs" / "fp8_kv.yaml").write_text(
        "name: !!python/object/apply:os.getcwd []\n"
    )
    assert "YAML" in str(problem_of(suite_copy))


def test_missing_folder(tmp_path):
    told = str(problem_of(tmp_path))
    assert "directory not found" in told
    assert "--suite" in told, "somebody in another folder is told how to go on"


def test_unknown_names_list_the_known(repository):
    suite = load_suite(repository / "perf_tests")
    for look_up in (suite.target, suite.config, suite.workload):
        with pytest.raises(UnknownNameError) as caught:
            look_up("nobody")
        assert isinstance(caught.value, UsageError)
        assert "Use one of" in str(caught.value)


def test_workloads_on_request_are_cells_only_when_they_are_asked_for(repository):
    suite = load_suite(repository / "perf_tests")
    assert {cell.workload.name for cell in suite.cells(("cpu-gqa",))} == {"chat"}
    asked = suite.cells(("cpu-gqa",), on_request={"poisson", "serve_8k"})
    assert {cell.workload.name for cell in asked} == {"chat", "poisson"}


def test_a_workload_on_request_must_exist_and_stand_once(suite_copy):
    target = suite_copy / "targets" / "cpu-gqa.yaml"
    rewrite(target, workloads_on_request=["nothing"])
    assert problem_of(suite_copy).key == "workloads_on_request"
    rewrite(target, workloads_on_request=["chat"])
    assert "chat is in both workloads and workloads_on_request" in str(problem_of(suite_copy))


def test_a_workloads_tolerances_overlay_the_targets(suite_copy):
    rewrite(
        suite_copy / "tolerances.yaml",
        workloads={"prefix": {"prefix_hit_ratio": {"loss_absolute": 0.01}, "ttft_mean_ms": None}},
    )
    tolerances = load_suite(suite_copy).tolerances
    assert tolerances.for_cell("cpu-gqa", "default", "chat") == tolerances.for_target("cpu-gqa")
    own = tolerances.for_cell("cpu-gqa", "default", "prefix")
    assert own["prefix_hit_ratio"].loss_absolute == 0.01
    assert "ttft_mean_ms" not in own
    assert own["output_tokens_per_s"].loss_ratio == 0.10


@pytest.mark.parametrize(
    ("workloads", "needle"),
    [
        ({"nothing": {"prefix_hit_ratio": {"loss_absolute": 0.01}}}, "no workload has this name"),
        ({"prefix": {"tpot_mean_ms": {"loss_absolute": 1.0}}}, "use one kind"),
        (
            {
                "prefix": {"prefix_hit_ratio": {"loss_absolute": 0.01}},
                "trace": {"prefix_hit_ratio": {"loss_ratio": 0.01}},
            },
            "use one kind",
        ),
    ],
)
def test_a_workloads_tolerance_that_cannot_be_meant(suite_copy, workloads, needle):
    rewrite(suite_copy / "tolerances.yaml", workloads=workloads)
    assert needle in str(problem_of(suite_copy))


def test_a_configs_tolerances_overlay_all_others_on_its_target_alone(suite_copy):
    rewrite(
        suite_copy / "tolerances.yaml",
        workloads={
            "chat": {
                "output_tokens_per_s": {"loss_ratio": 0.2},
                "tpot_mean_ms": {"loss_ratio": 0.3},
            }
        },
        configs={
            "cpu-gqa": {
                "seqs_down": {"output_tokens_per_s": {"loss_ratio": 0.4}, "ttft_mean_ms": None}
            }
        },
    )
    tolerances = load_suite(suite_copy).tolerances
    sibling = tolerances.for_cell("cpu-gqa", "default", "chat")
    own = tolerances.for_cell("cpu-gqa", "seqs_down", "chat")
    assert [
        sibling[name].loss_ratio for name in ("output_tokens_per_s", "tpot_mean_ms", "ttft_mean_ms")
    ] == [0.2, 0.3, 0.2]
    assert [own[name].loss_ratio for name in ("output_tokens_per_s", "tpot_mean_ms")] == [0.4, 0.3]
    assert "ttft_mean_ms" not in own
    assert tolerances.for_cell("cpu-hybrid", "seqs_down", "chat") == tolerances.for_cell(
        "cpu-hybrid", "default", "chat"
    )


@pytest.mark.parametrize(
    ("configs", "key", "problem", "next_step"),
    [
        (
            {"h200": {"default": {}}},
            "configs.h200",
            "no target has this name",
            "Use one of: b200-k3, ",
        ),
        (
            {"cpu-gqa": {"nothing": {}}},
            "configs.cpu-gqa.nothing",
            "no config has this name",
            "Use one of: default, ",
        ),
        (
            {"h200-k3": {"chunked_prefill_off": {}}},
            "configs.h200-k3.chunked_prefill_off",
            "h200-k3 does not measure this config: h200-k3 does not declare chunked_prefill_off",
            "Remove it, or use one of: default, ",
        ),
        (
            {"h200-k3": {"batched_tokens_up": {}}},
            "configs.h200-k3.batched_tokens_up",
            "h200-k3 does not measure this config: this target serves with 8192 already",
            "Remove it, or use one of: default, ",
        ),
        (
            {"h200-k3": {"block_size_64": {}}},
            "configs.h200-k3.block_size_64",
            "h200-k3 does not measure this config: resolves to the same engine as default",
            "Remove it, or use one of: default, ",
        ),
        (
            {"h200-k3": {"seqs_down": {"tpot_mean_ms": {"loss_absolute": 1.5}}}},
            "configs.h200-k3.seqs_down.tpot_mean_ms",
            (
                "has a loss_absolute, but a loss_ratio in defaults; use one kind of tolerance for a"
                " metric (value: {'loss_absolute': 1.5})"
            ),
            "Give a loss_ratio here, or change defaults.tpot_mean_ms.",
        ),
        (
            {"h200-k3": {"seqs_down": {"goodput_requests_per_s": {"loss_ratio": 0.5}}}},
            "configs.h200-k3.seqs_down.goodput_requests_per_s",
            "has a loss_ratio, but a loss_absolute in workloads.bursty",
            "Give a loss_absolute here, or change workloads.bursty.goodput_requests_per_s.",
        ),
        (
            {"h200-k3": {"seqs_down": {"tpot_mean_ms": 0.4}}},
            "configs.h200-k3.seqs_down.tpot_mean_ms",
            "must be a tolerance, with its kind (value: 0.4)",
            (
                "Write configs: {TARGET: {CONFIG: {METRIC: {loss_ratio: 0.1}}}}; docs/configs.md"
                " lists every key."
            ),
        ),
    ],
)
def test_a_configs_tolerance_that_cannot_be_meant(suite_copy, configs, key, problem, next_step):
    rewrite(suite_copy / "tolerances.yaml", configs=configs)
    found = problem_of(suite_copy)
    assert (found.path.name, found.key) == ("tolerances.yaml", key)
    assert problem in str(found)
    assert next_step in found.next_step


RATIO = {"loss_ratio": 0.1}


@pytest.mark.parametrize(
    ("place", "value", "key", "problem"),
    [
        (
            "configs",
            {"h200-k3": {"tpot_mean_ms": RATIO}},
            ".h200-k3.tpot_mean_ms",
            "a level is missing: found a tolerance where metric names",
        ),
        (
            "configs",
            {"seqs_down": {"tpot_mean_ms": RATIO}},
            ".seqs_down.tpot_mean_ms",
            "a level is missing",
        ),
        ("configs", {"h200-k3": {"seqs_down": RATIO}}, ".h200-k3.seqs_down", "a level is missing"),
        (
            "configs",
            {"tpot_mean_ms": RATIO},
            ".tpot_mean_ms",
            "a level is missing: found a tolerance where config names",
        ),
        ("configs", RATIO, "", "a level is missing: found a tolerance where target names"),
        (
            "configs",
            {"h200-k3": {"tpot_mean_ms": None}},
            ".h200-k3.tpot_mean_ms",
            "each metric to its tolerance, and is empty",
        ),
        (
            "configs",
            {"h200-k3": None},
            ".h200-k3",
            "must be a mapping of each config to its metrics, and is empty",
        ),
        (
            "configs",
            {"h200-k3": {"seqs_down": {"tpot_mean_ms": {"chat": RATIO}}}},
            ".h200-k3.seqs_down.tpot_mean_ms",
            "one level too many",
        ),
        (
            "targets",
            {"h200-k3": {"seqs_down": {"tpot_mean_ms": RATIO}}},
            ".h200-k3.seqs_down",
            "one level too many",
        ),
        (
            "workloads",
            {"tpot_mean_ms": RATIO},
            ".tpot_mean_ms",
            "a level is missing: found a tolerance where metric names",
        ),
        ("defaults", RATIO, "", "a level is missing: found a tolerance where metric names"),
    ],
)
def test_a_forgotten_level_of_tolerances_is_told_as_one(suite_copy, place, value, key, problem):
    rewrite(suite_copy / "tolerances.yaml", **{place: value})
    found = problem_of(suite_copy)
    assert (found.path.name, found.key) == ("tolerances.yaml", place + key)
    assert problem in found.problem
    assert found.next_step.startswith(f"Write {place}: {{")


@pytest.mark.parametrize(
    ("base", "problem", "next_step"),
    [
        ("nothing", "no target has this name", "Use one of: b200-k3, "),
        (
            "h200-k3-small",
            (
                "serves another model (models/h200-k3-small, dummy weights) than this target"
                " (models/h200-k3, dummy weights)"
            ),
            "same model",
        ),
        ("h200-k3-tp2", "has 2 devices, not fewer than this target's 2", "fewer devices"),
        ("h200-k3-dp2", "has 2 devices, not fewer than this target's 2", "fewer devices"),
    ],
)
def test_a_scaling_base_that_nothing_can_be_compared_with(suite_copy, base, problem, next_step):
    rewrite(suite_copy / "targets" / "h200-k3-tp2.yaml", scaling_base=base)
    found = problem_of(suite_copy)
    assert (found.path.name, found.key, found.value) == ("h200-k3-tp2.yaml", "scaling_base", base)
    assert problem in str(found)
    assert next_step in str(found)


def test_a_scaling_base_on_other_devices(suite_copy):
    base = suite_copy / "targets" / "h200-k3-small.yaml"
    rewrite(
        base,
        hardware={**yaml.safe_load(base.read_text())["hardware"], "device_name": "NVIDIA H100"},
    )
    assert "runs on other devices (NVIDIA H100) than this target (NVIDIA H200)" in str(
        problem_of(suite_copy)
    )
    rewrite(base, hardware={"kind": "cpu", "hardware_class": "any-cpu"})
    assert "runs on other devices (cpu) than this target (NVIDIA H200)" in str(
        problem_of(suite_copy)
    )
    wide = suite_copy / "targets" / "h200-k3-small-tp2.yaml"
    rewrite(wide, hardware={**yaml.safe_load(wide.read_text())["hardware"], "device_name": ""})
    assert "runs on other devices (cpu) than this target (nvidia)" in str(problem_of(suite_copy))


def test_a_scaling_base_that_serves_a_checkpoint(suite_copy):
    rewrite(
        suite_copy / "targets" / "h200-k3-small.yaml",
        model={"checkpoint": "moonshotai/K3", "weights": "checkpoint"},
    )
    assert (
        "serves another model (moonshotai/K3, checkpoint weights) than this target"
        " (models/h200-k3-small, dummy" in str(problem_of(suite_copy))
    )


def test_a_scaling_base_must_be_a_name(suite_copy):
    rewrite(suite_copy / "targets" / "h200-k3-tp2.yaml", scaling_base=["h200-k3"])
    found = problem_of(suite_copy)
    assert (found.path.name, found.key) == ("h200-k3-tp2.yaml", "scaling_base")


def test_why_a_target_has_no_cell_of_a_config(repository):
    suite = load_suite(repository / "perf_tests")
    target = suite.target("h200-k3-tp2")
    assert suite.not_collected(target, suite.config("default")) == ""
    assert (
        suite.not_collected(target, suite.config("seqs_up"))
        == "h200-k3-tp2 does not declare seqs_up"
    )
    assert "resolves to the same engine as default" in suite.not_collected(
        target, suite.config("block_size_16")
    )
    assert (
        suite.not_collected(target, suite.config("fp8_kv"))
        == suite.refusal(target, suite.config("fp8_kv"))
        != ""
    )


@pytest.mark.parametrize(
    ("hardware", "parallelism", "key", "problem"),
    [
        (
            {"device_count": 4},
            {},
            "hardware.device_count",
            "is 4, but parallelism makes 2 ranks (tensor 2 x pipeline 1 x data 1)",
        ),
        ({}, {"tensor": 1}, "hardware.device_count", "is 2, but parallelism makes 1 ranks"),
        (
            {"device_count": 6, "host_count": 4},
            {"tensor": 6},
            "hardware.host_count",
            "does not divide the 6 devices evenly",
        ),
    ],
)
def test_devices_and_ranks_must_agree(suite_copy, hardware, parallelism, key, problem):
    path = suite_copy / "targets" / "h200-k3-tp2.yaml"
    data = yaml.safe_load(path.read_text())
    rewrite(
        path, hardware=data["hardware"] | hardware, parallelism=data["parallelism"] | parallelism
    )
    found = problem_of(suite_copy)
    assert (found.path.name, found.key) == ("h200-k3-tp2.yaml", key)
    assert problem in str(found)


def test_two_cells_of_one_id_are_refused(suite_copy):
    """Dashes join the parts of an id and may stand in them."""
    rewrite(suite_copy / "targets" / "cpu-hybrid.yaml", workloads=["chat", "x-default-chat"])
    chat = yaml.safe_load((suite_copy / "workloads" / "chat.yaml").read_text())
    (suite_copy / "workloads" / "x-default-chat.yaml").write_text(
        yaml.safe_dump(chat | {"name": "x-default-chat"})
    )
    other = yaml.safe_load((suite_copy / "targets" / "cpu-hybrid.yaml").read_text())
    other |= {"name": "cpu-hybrid-default-x", "workloads": ["chat"], "configs": ["default"]}
    (suite_copy / "targets" / "other.yaml").write_text(yaml.safe_dump(other))
    found = problem_of(suite_copy)
    assert found.key == "name"
    assert "'cpu-hybrid-default-x-default-chat', like cpu-hybrid + default + x-default-chat" in str(
        found
    )


def test_one_stop_reports_every_problem_of_a_file(suite_copy):
    path = suite_copy / "targets" / "cpu-gqa.yaml"
    data = yaml.safe_load(path.read_text())
    data["hardware"]["hardware_clas"] = data["hardware"].pop("hardware_class")
    data["hardware"]["device_count"] = 0
    data["measurement"]["minimum_rounds"] = "four"
    data["measurement"]["warm_up_round"] = 1
    data["validity"] = {"steal_ratio": "none"}
    del data["description"]
    path.write_text(yaml.safe_dump(data))
    error = problem_of(suite_copy)
    text = str(error)
    assert text.startswith(f"{path}: 6 problems\n")
    lines = text.splitlines()[1:]
    keys = {problem.key for problem in error.problems}
    assert keys == {
        "hardware.hardware_clas",
        "hardware.device_count",
        "measurement.minimum_rounds",
        "measurement.warm_up_round",
        "validity.steal_ratio",
        "description",
    }
    assert len(lines) == 6
    assert all(
        line.startswith("  at '") and line.rstrip().endswith((".", "?")) for line in lines
    )  # each with its next step
    assert any("Did you mean 'warm_up_rounds'?" in line for line in lines)
    assert any("(value: 'four')" in line for line in lines)


def test_one_stop_reports_the_refusals_of_every_file(suite_copy):
    rewrite(
        suite_copy / "configs" / "fp8_kv.yaml", change={"kv_cache_dtyp": "fp8"}, extends="nobody"
    )
    rewrite(suite_copy / "configs" / "seqs_up.yaml", change={"max_num_seqs": True})
    text = str(problem_of(suite_copy))
    assert f"{suite_copy / 'configs' / 'fp8_kv.yaml'}: 2 problems" in text
    assert f"{suite_copy / 'configs' / 'seqs_up.yaml'}: 1 problem\n" in text
    rewrite(
        suite_copy / "configs" / "fp8_kv.yaml", change={"kv_cache_dtype": "fp8"}, extends="default"
    )
    rewrite(suite_copy / "configs" / "seqs_up.yaml", change={"max_num_seqs": 128})
    rewrite(
        suite_copy / "targets" / "cpu-gqa.yaml",
        workloads=["nothing", "nowhere"],
        engine_arguments={"port": 1},
    )
    rewrite(
        suite_copy / "tolerances.yaml",
        workloads={"gone": {}},
        configs={"cpu-gqa": {"none": {}}, "nothing": {"default": {}}},
    )
    text = str(problem_of(suite_copy))
    assert "cpu-gqa.yaml: 3 problems" in text
    assert "tolerances.yaml: 3 problems" in text
    assert "'engine_arguments.port': is set by the harness itself (value: 1). Remove it" in text


def test_a_single_problem_stays_on_one_line(suite_copy):
    rewrite(suite_copy / "configs" / "fp8_kv.yaml", extends="nobody")
    assert "\n" not in str(problem_of(suite_copy))


def test_a_config_of_memory_and_lock_keeps_its_exact_metrics_alone(suite_copy):
    rewrite(
        suite_copy / "tolerances.yaml",
        memory_and_lock={"h200-k2": {"seqs_down": "made for a test"}},
    )
    tolerances = load_suite(suite_copy).tolerances
    gated = tolerances.for_cell("h200-k2", "seqs_down", "serve_1k")
    assert {"weights_bytes", "kv_cache_bytes", "peak_allocated_bytes"} <= gated.keys()
    assert all(METRICS[name].comparison is Comparison.EXACT for name in gated)
    assert "tpot_mean_ms" in tolerances.for_cell("h200-k2", "default", "serve_1k")


@pytest.mark.parametrize(
    ("changes", "key", "needle"),
    [
        (
            {"memory_and_lock": {"nowhere": {"default": "made for a test"}}},
            "memory_and_lock.nowhere",
            "no target",
        ),
        (
            {"memory_and_lock": {"h200-k2": {"seqs": "made for a test"}}},
            "memory_and_lock.h200-k2.seqs",
            "no config",
        ),
        (
            {
                "memory_and_lock": {"h200-k2": {"fp8_kv": "made for a test"}},
                "configs": {"h200-k2": {"fp8_kv": {"tpot_mean_ms": {"loss_ratio": 0.5}}}},
            },
            "configs.h200-k2.fp8_kv.tpot_mean_ms",
            "gates no metric with noise",
        ),
    ],
)
def test_memory_and_lock_of_an_unknown_or_a_timed_config(suite_copy, changes, key, needle):
    rewrite(suite_copy / "tolerances.yaml", **changes)
    error = problem_of(suite_copy)
    assert error.key == key
    assert needle in str(error)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"configs": ["seqs"], "reason": "made for a test"}, "candidates.0.configs"),
        ({"workloads": ["cht"], "reason": "made for a test"}, "candidates.0.workloads"),
        ({"configs": ["default"], "reason": "-"}, "candidates.0.reason"),
    ],
)
def test_a_candidate_of_an_unknown_name_or_without_a_reason(suite_copy, entry, key):
    rewrite(suite_copy / "targets" / "cpu-hybrid.yaml", candidates=[entry])
    assert problem_of(suite_copy).key == key
