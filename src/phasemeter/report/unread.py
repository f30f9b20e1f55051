"""Output that nobody reads any more (`| head`, `| grep -q`): it is dropped, and a verb still ends with the exit code it came to.

Must not live here: what is written.
"""

from __future__ import annotations

import os
import sys


def dropped() -> None:
    """From now on standard output leads nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(text: str) -> None:
    """`text` on standard output, while there is someone to read it."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        dropped()


def flush() -> None:
    """What is still held back, while there is someone to read it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        dropped()
