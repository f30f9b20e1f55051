"""Every failure and warning that code can give is explained in docs/streams.md."""

from __future__ import annotations

import re
from pathlib import Path

from phasemeter.wire.outcome import CLOSE_FAILURES

ROOT = Path(__file__).parents[2]


def test_every_kind_of_failure_and_every_warning_is_explained() -> None:
    sources = [*(ROOT / "src/phasemeter/wire").glob("*.py"), ROOT / "src/phasemeter/metrics/tokens.py"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    given = set(re.findall(r'(?:failed|fail|warnings\.add|found\.add)\(\s*"(\w+)"', code)) | set(
        CLOSE_FAILURES.values()
    )
    assert len(given) > 20
    page = set(re.findall(r"`(\w+)`", (ROOT / "docs/streams.md").read_text(encoding="utf-8")))
    assert given - page == set()
