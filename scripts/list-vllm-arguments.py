"""Print the arguments that this environment's `vllm serve` takes, as JSON; run with the
engine's Python.

    .venv-engine/bin/python scripts/list-vllm-arguments.py \\
        --merge src/k3perf/config/vllm_arguments.json > new.json

Then put new.json in the place of the table. The table lets the harness check arguments
without vLLM installed. Without --merge the releases that the table has already are
lost.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from k3perf_probe.arguments import listed, vllm_release


def main() -> None:
    """Print the table."""
    release = vllm_release().split("+")[0]
    table = {}
    if "--merge" in sys.argv:
        table = json.loads(Path(sys.argv[sys.argv.index("--merge") + 1]).read_text())["arguments"]
    for name, found in listed().items():
        known = table.get(name, {"choices": [], "releases": []})
        entry = {"kind": found["kind"]}
        if found["form"] != "one":
            entry["form"] = found["form"]
        if found["aliases"]:
            entry["aliases"] = found["aliases"]
        entry["choices"] = sorted({*known["choices"], *found["choices"]})
        entry["releases"] = sorted({*known["releases"], release})
        table[name] = entry
    print(
        json.dumps(
            {"source": "the parser of vllm serve", "arguments": dict(sorted(table.items()))},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
