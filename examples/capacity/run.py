"""Which deployment for a chat on one model: accelerators and how many together, schedulers and their batches, prefill and decode apart.

The same as `phasemeter plan plan.yaml --quick`, a hundred columns wide.
"""

from pathlib import Path

from phasemeter.report.choose import words
from phasemeter.runs.choose import choose
from phasemeter.runs.choose_document import document
from phasemeter.serving.plan_candidates import parse_choice

PLAN = Path(__file__).parent / "plan.yaml"

found = choose(parse_choice(PLAN.read_text(encoding="utf-8"), PLAN.name), None, quick=True)
print("\n".join(words(document(found), 100)))
