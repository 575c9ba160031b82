"""Text of about a given number of tokens, for servers that take text only. Pure."""

from __future__ import annotations

import random
from typing import Final

_TEXT: Final = """
    the of and to in is that for it as was with be by on not he his but at are this have
    from or had an they which one you were all her she there would their we him been has
    when who will no more if out so said what up its about than into them can only other
    time new some could these two may first then do any like my now over such our man me
    even most made after also well many must before back through years where much your way
    down should because long each just state people too mr how little good world make very
    year still see own work men day get here old life both between being under three never
    know same last another while us off might great go come since against right came take
    used himself few house use place during high without again home around small however
    found part school every
"""
_WORDS: Final = tuple(_TEXT.split())


def words(key: int, count: int) -> str:
    """``count`` common English words, different for each ``key``. Most tokenizers make
    one token of each.
    """
    generator = random.Random(key)  # noqa: S311 - filler, not secrets
    return " ".join(generator.choices(_WORDS, k=count))
