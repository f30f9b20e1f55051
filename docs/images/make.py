"""Draws docs/images/demo.svg from a run directory: what `phasemeter report RUN` prints, as a picture.

python docs/images/make.py runs/SOME-demo/loaded
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from phasemeter.report import terminal
from phasemeter.runs.analysis import analyse

TARGET = Path(__file__).with_name("demo.svg")
COLUMNS = 104


def main(run: str) -> None:
    """Print the report of `run` into the picture."""
    console = Console(record=True, width=COLUMNS, highlight=False, file=io.StringIO(), force_terminal=True)
    terminal.show(analyse(Path(run)), console)
    picture = console.export_svg(title="phasemeter demo: under load", unique_id="demo")
    TARGET.write_text(
        re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S), encoding="utf-8"
    )  # no font from a network


if __name__ == "__main__":
    main(sys.argv[1])
