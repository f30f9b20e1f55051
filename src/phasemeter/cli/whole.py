"""A whole number on the command line.

Lives here: the one reading of it, for the annotation of every such option: cyclopts itself rounds "1.5" without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cyclopts import Parameter, Token

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")


def whole(type_: type, tokens: Sequence[Token]) -> int:
    """The number in "12", "-3" or "10_000". Raises ValueError for anything else."""
    text = tokens[0].value.strip()
    if not _WHOLE.fullmatch(text) or len(text) > 30:
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


WHOLE = Parameter(converter=whole)
