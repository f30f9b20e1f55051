"""Lines on a terminal: none is longer than it is wide. In a pipe they stay whole, for whoever searches them.

Lives here: how wide standard output is, and where a line is folded. Must not live here: what is said, or how a table is laid out
anew where it doesn't fit.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from phasemeter.report import unread
from phasemeter.report.plain import plain

NARROWEST = 40
DEEPEST = 36  # columns: a folded line's rest begins under the last column of words that begins before here
COLUMN = re.compile(r"(?<=\S)\s{2,}(?=\S)")


def columns() -> int | None:
    """How wide the terminal at standard output is; None where there is none."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def folded(line: str, wide: int | None) -> list[str]:
    """`line` on as many lines as `wide` columns make of it, broken between words, the rest under the words it belongs to."""
    if wide is None or len(line) <= wide:
        return [line]
    start = len(line) - len(line.lstrip())
    hang = max((gap.end() for gap in COLUMN.finditer(line) if gap.end() <= min(DEEPEST, wide // 2)), default=start + 2)
    return textwrap.wrap(
        line, wide, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
        replace_whitespace=False,
    )  # fmt: skip


def show(lines: Iterable[str]) -> None:
    """Print lines for a person, control characters written out."""
    wide = columns()
    for text in lines:
        for line in plain(text).split("\n"):
            unread.write("\n".join(folded(line, wide)) + "\n")
