"""Three workloads under three contracts on one deployment: three different right answers, as printed when they were written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "three_contracts"


def test_three_contracts_have_three_right_answers_and_print_them_as_written() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (EXAMPLE / "run.txt").read_text(encoding="utf-8")
    binds = dict(re.findall(r"^(chat|batch|long_generation) .*?(ttft|tpot|e2e|stability)", ran.stdout, re.MULTILINE))
    assert binds == {"chat": "ttft", "batch": "e2e", "long_generation": "tpot"}
