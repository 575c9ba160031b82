"""The shipped table and the rendered file against the parser of a real vLLM; no server
is started.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.config.arguments import ArgumentTable, covered, shipped_table
from k3perf.engine.installed_vllm import installed_vllm
from k3perf.engine.render import native_config
from k3perf.run.argument_table import read_table

pytestmark = pytest.mark.engine

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "unit" / "config" / "arguments_of_the_field.yaml").read_text()
)
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parsed = vars(make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", sys.argv[1]]))
names = sys.argv[2].split(",")
open(sys.argv[3], "w").write(json.dumps({name: parsed[name] for name in names}, default=vars))
"""


def test_the_shipped_table_is_what_this_release_takes(engine_python: Path, tmp_path: Path) -> None:
    release = installed_vllm(engine_python).release
    if not covered([], release) or not covered(["max_num_seqs"], release):
        pytest.skip(f"the shipped table does not speak of vLLM {release}")
    table = read_table(engine_python, tmp_path)
    assert isinstance(table, ArgumentTable), table
    shipped = {
        name: own
        for name, own in shipped_table().arguments.items()
        if release.partition("+")[0] in own.releases
    }
    assert table.arguments.keys() == shipped.keys()
    for name, own in table.arguments.items():
        assert (own.kind, own.form, own.aliases) == (
            shipped[name].kind,
            shipped[name].form,
            shipped[name].aliases,
        ), name
        assert set(own.choices) <= set(shipped[name].choices), name


def test_what_is_rendered_is_what_vllm_reads(engine_python: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    for case in CASES:
        if "accepted" in case:
            given |= case["given"]
    (tmp_path / "config.yaml").write_text(native_config(given, "m"))
    output = tmp_path / "parsed.json"
    done = subprocess.run(
        [
            str(engine_python),
            "-c",
            PARSE,
            str(tmp_path / "config.yaml"),
            ",".join(given),
            str(output),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = yaml.safe_load(output.read_text())
    expected = {**given, "max_num_batched_tokens": 64 * 1024}
    for name, value in expected.items():
        found = parsed[name]
        if name == "lora_modules":
            found = [{key: module[key] for key in ("name", "path")} for module in found]
        assert found == value, name
