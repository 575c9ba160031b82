"""Numbers on the command line: argparse types that refuse what is out of range."""

from __future__ import annotations

import argparse
from typing import Final


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def share(text: str) -> float:
    """A share above 0, at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


MOST: Final = 10**15
"""A petabyte, in bytes: what is counted here is less, and computing with more would
overflow.
"""


def count(text: str) -> int:
    """A whole number from 1 to ``MOST``."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 1 or more")
    if value > MOST:
        raise argparse.ArgumentTypeError(f"a count of more than {MOST:,} is too large")
    return value
