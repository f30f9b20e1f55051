"""Which build this is: the version, and in a checkout its commit.

Lives here: asking git. Must not live here: anything a measurement depends on.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from phasemeter import __version__

CHECKOUT = Path(__file__).parents[3]


def build(checkout: Path = CHECKOUT) -> str:
    """Like "0.1.0 (4f2a91c)", "0.1.0 (4f2a91c, changed)" with uncommitted work, or the version alone outside a checkout."""
    if not (checkout / ".git").exists() or not (checkout / "pyproject.toml").exists():
        return __version__
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=, changed", "--abbrev=9", "--exclude=*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} ({said})"
