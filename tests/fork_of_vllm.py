"""An engine's Python whose vLLM is a fork with arguments of its own: nothing but a
parser.
"""

import sys
from pathlib import Path

PARSER = """
import argparse
from pathlib import Path
Path({log!r}).open("a").write("listed\\n")
print("a line of vLLM's own on standard output")
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8", "nvfp4_fork"])
    parser.add_argument("--fork-speed", "--fork-velocity", type=int)
    parser.add_argument("--fork-layers", nargs="+")
    parser.add_argument("--fork-turbo", action=argparse.BooleanOptionalAction)
    return parser
"""


class Fork:
    """A vLLM with arguments of its own, as an engine's Python has it. ``listings``: how
    often its parser was asked for.
    """

    def __init__(self, root: Path, release: str, module: str = "launchers") -> None:
        self.site = root / "site"
        self.log = root / "listed"
        self.module = self.site / "vllm" / "entrypoints" / module / "cli_args.py"
        for folder in (
            self.module.parent,
            self.site / "vllm" / "utils",
            self.site / f"vllm-{release}.dist-info",
        ):
            folder.mkdir(parents=True)
        for folder in (
            self.site / "vllm",
            self.site / "vllm" / "entrypoints",
            self.module.parent,
            self.site / "vllm" / "utils",
        ):
            (folder / "__init__.py").touch()
        (self.site / "vllm" / "utils" / "argparse_utils.py").write_text(
            "from argparse import ArgumentParser as FlexibleArgumentParser\n"
        )
        (self.site / f"vllm-{release}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n"
        )
        self.module.write_text(PARSER.format(log=str(self.log)))
        self.python = root / "python"
        self.python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{self.site}" exec "{sys.executable}" "$@"\n'
        )
        self.python.chmod(0o755)

    @property
    def listings(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0
