"""docs/definitions.md, written from the rows that compute.

Lives here: the page's layout. A test holds the page in the repository to what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from phasemeter.metrics.definitions import HOUSE
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.metrics.dialects.model import Dialect
from phasemeter.report.define import BOUNDARY_WORDS, rules


def page() -> str:
    """The whole page, ending in a newline."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Definitions"
    yield ""
    yield "Made from the rows that compute (`phasemeter define` prints the same); don't edit by hand:"
    yield "`python -m phasemeter.report.definitions_page > docs/definitions.md`."
    yield ""
    yield "## Boundaries"
    yield ""
    for name, words in BOUNDARY_WORDS.items():
        yield f"- `{name}`: {words}"
    yield ""
    yield "## phasemeter/1"
    yield ""
    yield "| metric | definition | left out | in words |"
    yield "|---|---|---|---|"
    for row in HOUSE.values():
        line = row.line() if row.line() != row.words else ""
        yield f"| `{row.name}` | {line} | {', '.join(row.excluded)} | {row.words} |"
    for dialect in DIALECTS.values():
        yield ""
        yield from _dialect(dialect)
    for word in ("output_tokens", "throughput", "goodput", "max_goodput"):
        yield ""
        yield f"## {word} in each"
        yield ""
        yield "| tool | rule |"
        yield "|---|---|"
        for rule in rules(word):
            yield f"| {rule['tool']} | {rule['rule']} |"


def _dialect(dialect: Dialect) -> Iterator[str]:
    yield f"## {dialect.id}: {dialect.title}"
    yield ""
    yield "| its name | unit | our word | definition | left out | weight | note |"
    yield "|---|---|---|---|---|---|---|"
    for own in dialect.rows:
        row = own.definition
        weight = own.weight or ("each gap equal" if row.kind == "gap" else "each request equal")
        excluded = ", ".join(row.excluded)
        yield f"| `{own.key}` | {own.unit} | {own.word} | {row.line()} | {excluded} | {weight} | {own.note} |"
    yield ""
    rule = "linear on n − 1" if dialect.rule == "linear" else "the first value whose cumulative share reaches the level"
    for label, text in (
        ("First token", dialect.first_token),
        ("Tokens", dialect.tokens),
        ("Counted", dialect.counted),
        ("Percentiles", f"{', '.join(label for label, _ in dialect.percentiles)}; {rule}"),
        ("Window", dialect.window_words),
        ("Can't be re-created", "; ".join(dialect.distortions)),
        ("Source", dialect.source),
    ):
        yield f"- {label}: {text}"


if __name__ == "__main__":
    sys.stdout.write(page())
