"""The table of candidates: every width it is read at, every way it can end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.report.choose import exit_code, words


def row(name: str, rank: int | None, status: str = "measured", **more: Any) -> dict[str, Any]:
    value = None if rank is None else 10.0 / rank
    ends = [None, None] if value is None or status == "screened" else [value * 0.98, value * 1.02]
    told = {
        "resource": "memory_bandwidth", "ttft_s": {"p90": 0.2}, "tpot_s": {"p90": 0.03}, "kv_share": 0.4, "batch": 12.0,
    }  # fmt: skip
    return {
        "rank": rank, "name": name, "accelerators": 2, "price_per_h": 5.0, "status": status, "binding": "tpot",
        "goodput_per_accelerator": {"value": value, "ci95": ends}, "goodput_per_currency": {"value": value, "ci95": ends},
        "ceiling_per_s": 9.0, "at_goodput": told if rank is not None else None, "for_target": None,
    } | more  # fmt: skip


def answer(*rows: dict[str, Any], currency: str | None = None, **more: Any) -> dict[str, Any]:
    best = next((one["name"] for one in rows if one["rank"] == 1), None)
    choice = None if best is None else {"name": best, "tied": [], "robust": None, "other_choice_with": []}
    return {
        "partial": False, "model": "m", "attainment_target": 0.9, "objectives_s": {"ttft": 0.4}, "currency": currency,
        "choice": choice, "candidates": list(rows), "impossible": [], "target": None, "scenarios": [], "warnings": [],
    } | more  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.text("abcdef 0123", min_size=1, max_size=70), min_size=1, max_size=6, unique=True),
    width=st.integers(72, 200),
    currency=st.sampled_from([None, "USD"]),
)
def test_no_line_is_wider_than_its_terminal_and_every_candidate_is_in_it(
    names: list[str], width: int, currency: str | None
) -> None:
    rows = [row(name, rank) for rank, name in enumerate(names, 1)]
    table = words(answer(*rows, currency=currency), width)
    assert max(map(len, table)) <= width
    assert sum(line.lstrip().startswith(f"{rank} ") for rank in range(1, len(names) + 1) for line in table) >= len(
        names
    )


def test_columns_go_by_need_and_what_ranks_stays() -> None:
    rows = [row("H100 tp1 vllm_v1 batch 2048", 1), row("H100 tp2 vllm_v1 batch 16384", 2)]
    for width in (80, 120, 200):
        head = words(answer(*rows, currency="USD"), width)[2]
        assert all(name in head for name in ("candidate", "GPUs", "req/s per GPU", "req per USD", "SLO"))
        assert ("batch" in head.split("SLO")[1]) is (width == 200)


def test_ties_are_marked_and_short_looks_show_no_interval() -> None:
    text = "\n".join(words(answer(row("a", 1), row("b", 1), row("c", 3, "screened")), 100))
    assert text.count("1= ") == 2 and "~3.33" in text and "~3.33 (" not in text and "short looks" in text


def test_the_reason_of_each_that_is_not_ranked_is_said_once() -> None:
    left = [row("x", None, "passed_over"), row("y", None, "passed_over"), row("z", None, "keeps_no_rate")]
    impossible = [{"name": "w", "reason": "does not fit"}]
    text = "\n".join(words(answer(row("a", 1), *left, impossible=impossible), 100))
    assert text.count("no schedule of it") == 1 and "x (at most 4.5 a GPU), y (at most 4.5 a GPU)" in text
    assert "can't be: does not fit:\n    w" in text and "z" in text


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (answer(row("a", 1)), 0),
        (answer(row("a", None, "keeps_no_rate")), 1),
        (answer(impossible=[{"name": "w", "reason": "does not fit"}]), 2),
        (answer(row("a", 1), partial=True), 130),
        (answer(row("a", 1), target={"choice": None}), 1),
        (answer(row("a", 1), target={"choice": "a"}), 0),
    ],
)
def test_the_exit_code_says_how_it_ended(found: dict[str, Any], code: int) -> None:
    assert exit_code(found) == code


def test_a_warning_ends_the_answer() -> None:
    assert words(answer(row("tp1", 1), warnings=["one step time for two machines"]), 100)[-1] == (
        "warning: one step time for two machines"
    )
