"""The table of definitions is printed from the rows that compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.metrics.definitions import HOUSE
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.report import define, definitions_page
from tests.metrics.rows import row


def test_a_word_shows_every_tools_row_with_start_end_and_divisor() -> None:
    rows = {entry["tool"]: entry for entry in define.document("ttft")["definitions"]}
    assert set(rows) == {"phasemeter/1", *(dialect.id for dialect in DIALECTS.values())}
    assert (rows["phasemeter/1"]["start"], rows["phasemeter/1"]["end"]) == ("send_start", "first_token")
    assert rows["guidellm@0.8"]["start"] == "send_start"
    divisors = {entry["tool"]: entry["divisor"] for entry in define.document("tpot")["definitions"]}
    assert divisors["guidellm@0.8"] == "output_tokens"
    assert divisors["vllm@0.33"] == "output_tokens − 1"


def test_a_tools_own_name_is_a_word_too() -> None:
    assert {entry.tool for entry in define.entries("inter_token_latency")} >= {"aiperf@0.13", "inference-perf@0.7"}


def test_the_time_line_is_drawn_from_start_to_end() -> None:
    found = define.entries("e2e")
    header, *bars = define.timeline(found)
    marks = [header.index(f" {name}") + 1 for name in define.AXIS]
    for entry, line in zip(found, bars, strict=True):
        assert line.startswith(entry.tool)
        assert line.index("├") == marks[define.AT[entry.definition.start or ""]]
        assert line.index("┤") == marks[define.AT[entry.definition.end or ""]]


@pytest.mark.parametrize("word", [*HOUSE, *define.OTHER_WORDS])
def test_every_word_can_be_printed(word: str) -> None:
    assert "\n".join(define.lines(word))
    assert define.document(word)["word"] == word


def test_a_run_shows_how_far_the_choice_moves_its_number() -> None:
    answers = {answer["tool"]: answer for answer in define.moved("tpot", [row([100, 120, 140], end_ms=640)])}
    assert answers["phasemeter/1"]["mean"] == pytest.approx(0.020)
    assert answers["sglang@0.5"]["mean"] == pytest.approx(0.270)
    assert answers["sglang@0.5"]["mean_over_first"] == pytest.approx(13.5)
    assert answers["guidellm@0.8"]["mean"] == pytest.approx(0.140 / 3)
    assert "\n".join(define.moved_lines("tpot", list(answers.values())))


@pytest.mark.parametrize("word", sorted(define.OTHER_WORDS))
def test_a_word_that_is_no_number_per_request_says_where_to_read_it(word: str) -> None:
    with pytest.raises(UserError, match=f"define {word}.*report RUN --as"):
        define.moved(word, [row([100, 120])])


def test_an_unknown_word_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="ttft"):
        define.entries("tttf")


def test_the_page_in_the_repository_is_what_the_rows_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "definitions.md"
    assert page.read_text() == definitions_page.page(), (
        "python -m phasemeter.report.definitions_page > docs/definitions.md"
    )
