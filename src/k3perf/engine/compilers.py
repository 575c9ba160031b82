"""Programs that compile kernels, by the names that the process list shows (15
characters at most). Pure.
"""

from __future__ import annotations

import re
from typing import Final

_COMPILER: Final = re.compile(
    r"""
    (?:[\w.]+-)*                                        # x86_64-linux-gnu-
    (?:
        nvcc | cicc | ptxas | fatbinary | nvlink | cudafe\+\+ | tileiras | bin2c
      | hipcc | amdclang(?:\+\+)? | llc | opt
      | gcc | g\+\+ | cc | c\+\+ | cc1 | cc1plus | clang | clang\+\+ | icpx | icx
      | ld | ld\.\w+ | lld | gold | collect2 | as | lto1
      | ninja | make | gmake | cmake | cargo | rustc
    )
    (?:\.bin | \.real)?
    (?:-[\w.]*)?                                        # -12, -blackwell
  | (?:x86_64|aarch64)-linux-\w*                         # x86_64-linux-gnu-g++, cut
    """,
    re.VERBOSE,
)


def is_compiler(name: str) -> bool:
    """Whether a process of this name compiles, links or runs a build."""
    return _COMPILER.fullmatch(name) is not None
