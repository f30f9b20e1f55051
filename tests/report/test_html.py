"""The HTML report as text: whole in itself, escaped to the last letter, small, and honest about what it leaves out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.cli.main import run as command
from phasemeter.errors import FileError, UserError
from phasemeter.phases.budget import SEGMENTS
from phasemeter.report.explore import load_of, parts_of, start_of
from phasemeter.report.html import charts, markup
from phasemeter.report.html.page import asset
from phasemeter.report.html.run_page import run_page
from phasemeter.report.html.run_tables import open_tables
from phasemeter.report.html.segments import WORDS
from phasemeter.report.html.write import write_html, write_page
from phasemeter.runs.law import Law, Observation
from phasemeter.runs.tables import REQUESTS, write_tables
from tests.report.html_runs import HOSTILE, SCRIPT, hostile_run, rows, write_run

MARKS = 5_000
FETCHING = {"src", "srcset", "href", "action", "data", "poster", "formaction", "background", "cite", "ping"}

BUDGET = {
    "unit": "s", "requests": 120, "complete": 100, "with_server_evidence": 40, "negative_remainders": 0, "with_other_warnings": 3,
    "evidence": {"queue": {"vllm: `queue_time_ms`": 40}}, "lumps": {"ingress_delivery": "two clocks"},
    "inside_server_mean": 0.002, "before_text_mean": 0.004, "spans": {"joined": 37, "ambiguous": 2}, "warnings": [],
    "mean": {"ttft": {"ingress_delivery": 0.01, "queue": 0.02}}, "tails": {},
    "aggregate": {
        "vllm": {"n": 110, "mean": {"queue": 0.0123, "prefill": 0.04}, "told": {"queue_s": 0.0123, "n": 110}},
        "other": {"mean": None, "reason": "queue: absent"},
    },
}  # fmt: skip


class Seen(HTMLParser):
    """What a browser would find: elements, attributes, the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self._open: dict[str, str | None] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = dict(attrs) if tag == "script" else None

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.scripts.append((self._open, data))
            self._open = None
        else:
            self.text.append(data)

    def chart_specs(self) -> dict[str, Any]:
        return {str(a["id"]): json.loads(text) for a, text in self.scripts if a.get("type") == "application/json"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "small", rows(120))


@pytest.fixture(scope="module")
def small_page(small: Path) -> str:
    return run_page(small)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_page(hostile_run(tmp_path_factory.mktemp("runs") / "hostile"))


def test_the_page_fetches_nothing(small_page: str) -> None:
    for element, attributes in Seen(small_page).elements:
        assert element not in {"link", "iframe", "object", "embed", "base", "form"}, element
        for name in FETCHING & attributes.keys():
            assert (attributes[name] or "").startswith("#"), (element, attributes)
    assert "@import" not in small_page and not re.search(r"url\(\s*['\"]?(?!data:)", asset("page.css"))


def test_every_section_is_there_and_reached_from_the_navigation(small_page: str) -> None:
    seen = Seen(small_page)
    sections = [str(a["id"]) for element, a in seen.elements if element == "section"]
    assert sections == [
        "verdict",
        "latency",
        "budget",
        "timeline",
        "distributions",
        "evidence",
        "validity",
        "definitions",
    ]
    links = {a.get("href") for element, a in seen.elements if element == "a"}
    assert {f"#{name}" for name in sections} <= links


@pytest.mark.parametrize("which", ["small_page", "hostile_page"])
def test_only_scripts_whose_hash_the_policy_names_could_run(which: str, request: pytest.FixtureRequest) -> None:
    seen = Seen(request.getfixturevalue(which))
    policy = next(a["content"] or "" for e, a in seen.elements if e == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy and "script-src 'unsafe-inline'" not in policy and "unsafe-eval" not in policy
    running = [text for a, text in seen.scripts if a.get("type") != "application/json"]
    assert len(running) == 3
    for text in running:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_a_hostile_run_adds_no_element_and_no_handler(hostile_page: str, small_page: str) -> None:
    hostile, kind = Seen(hostile_page), Seen(small_page)
    assert {element for element, _ in hostile.elements} <= {element for element, _ in kind.elements} | {"ul", "li"}
    for element, attributes in hostile.elements:
        assert not any(name.startswith("on") for name in attributes), (element, attributes)
    assert len(hostile.scripts) == len(kind.scripts)


def test_hostile_text_is_shown_as_the_text_it_is(hostile_page: str) -> None:
    seen = Seen(hostile_page)
    assert HOSTILE[1] in "".join(seen.text)  # the model's name, in the heading
    told = seen.chart_specs()["timeline-data"]["rows"]
    assert any(HOSTILE[0] in row["id"] for row in told)
    assert any(row["text"] and HOSTILE[0] in row["text"] for row in told if row["outcome"] == "failed") or any(
        row["text"] for row in told
    )


@given(st.text(alphabet=st.characters(codec=None), max_size=80) | st.sampled_from(HOSTILE))
@settings(deadline=None, max_examples=200)
def test_any_text_comes_back_from_the_page_as_itself(text: str) -> None:
    made = str(markup.tag("p", text, title=text, data_copy=text))
    seen = Seen(made)
    assert [element for element, _ in seen.elements] == ["p"]
    attributes = seen.elements[0][1]
    assert attributes.keys() == {"title", "data-copy"}
    shown = markup.clean(text)
    assert attributes["title"] == shown and "".join(seen.text) == shown
    made.encode()  # no lone surrogate is left


@given(
    st.recursive(
        st.none() | st.floats() | st.text() | st.integers(-(2**53), 2**53), lambda inner: st.lists(inner, max_size=4)
    )
)
@settings(deadline=None, max_examples=200)
def test_data_for_scripts_holds_no_letter_that_could_end_it(value: Any) -> None:
    made = str(markup.data("x", value))
    inside = made.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&") & set(inside)
    json.loads(inside, parse_constant=pytest.fail)


def test_words_show_backticks_as_code_and_escape_what_is_in_them() -> None:
    assert markup.words("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert markup.words("one ` alone") == escape("one ` alone")


def test_every_number_of_the_table_carries_its_definition(small_page: str) -> None:
    copied = [a["data-copy"] or "" for _, a in Seen(small_page).elements if "data-copy" in a]
    ttft = [text for text in copied if text.startswith("ttft p95")]
    assert ttft and all("first_token − send_start (phasemeter/1)" in text and "n = " in text for text in ttft)


def test_the_numbers_on_the_page_are_the_results_own(small: Path, small_page: str) -> None:
    result = json.loads((small / "result.json").read_bytes())
    wanted = result["metrics"]["tpot"]["p50"]["value"] * 1e3
    told = next(
        a["data-copy"] or ""
        for _, a in Seen(small_page).elements
        if (a.get("data-copy") or "").startswith("tpot p50 =")
    )
    assert float(told.split("=")[1].split()[0]) == pytest.approx(wanted, rel=1e-3)


def marks(spec: dict[str, Any]) -> int:
    return sum(len(line["x"]) for line in spec["series"])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_page(write_run(tmp_path_factory.mktemp("runs") / "large", rows(12_000, events=4, rate=400.0)))


def test_no_chart_of_a_large_run_has_more_marks_than_it_may(large: str) -> None:
    specs = Seen(large).chart_specs()
    line = specs.pop("timeline-data")
    assert {name: marks(spec) for name, spec in specs.items() if marks(spec) > MARKS} == {}
    bars = sum(5 + len(row["laid"]) + len(row["stalls"]) for row in line["rows"])
    assert len(line["rows"]) > 100 and bars <= MARKS
    assert len(large.encode()) < 10_000_000


def test_a_page_says_what_it_leaves_out(large: str) -> None:
    text = "".join(Seen(large).text)
    assert "of 12,000 requests: 150 evenly spaced over the run" in text
    assert "requests drawn: the extremes and evenly spaced others" in large


def test_the_slowest_and_the_failed_requests_are_always_drawn(large: str) -> None:
    told = Seen(large).chart_specs()["timeline-data"]
    assert {"slowest TTFT", "failed or cancelled", "around the slowest TTFT"} <= {
        group["name"] for group in told["groups"]
    }
    assert sum(row["outcome"] == "failed" for row in told["rows"]) >= 50


def test_an_ecdf_passes_through_its_own_quantiles_and_its_band_holds_it() -> None:
    values = np.random.default_rng(5).lognormal(size=5000)
    line = charts.ecdf_line("x", values)
    ordered = np.sort(values) * 1e3
    for x, y, low, high in zip(line["x"], line["y"], line["lo"], line["hi"], strict=True):
        share = np.searchsorted(ordered, x * (1 + 1e-5), side="right") / len(ordered)
        assert y == pytest.approx(share, abs=2e-3)
        assert low <= y <= high and high - low <= 2 * 0.0193


def test_every_segment_of_the_budget_has_words_and_a_colour() -> None:
    assert list(WORDS) == list(SEGMENTS)
    for name in SEGMENTS:
        assert f".s-{name}" in asset("page.css")


def test_without_server_evidence_the_wait_is_one_lump_and_the_page_says_why(small_page: str) -> None:
    text = "".join(Seen(small_page).text)
    assert "can't be told apart" in text
    assert "No server evidence: only the client's side is known." in text


def test_a_contract_in_the_result_stands_on_top(small: Path) -> None:
    told = json.loads((small / "result.json").read_bytes())
    line = {"path": "latency_slo.ttft.p95", "verdict": "missed", "value": 0.5, "ci95": [0.45, 0.6], "n": 99, "n_to_decide": None,
            "limit": 0.4, "comparison": "<=", "unit": "s", "reason": None, "notes": [HOSTILE[0]]}  # fmt: skip
    text = run_page(small, told | {"contract": {"verdict": "missed", "lines": [line], "warnings": []}})
    plain = "".join(Seen(text).text)
    assert "✗ contract missed" in plain and "≤ 400 ms" in plain and HOSTILE[0] in plain


def test_a_run_without_any_success_has_a_page(tmp_path: Path) -> None:
    failed = [row for row in rows(90) if row.outcome == "failed"]
    text = run_page(write_run(tmp_path / "bad", failed))
    assert "No finished request had output" in "".join(Seen(text).text)


def test_a_run_of_no_requests_has_a_page(tmp_path: Path) -> None:
    assert "0 scheduled" in run_page(write_run(tmp_path / "empty", []))


def test_another_tools_definitions_make_a_page(small: Path, tmp_path: Path) -> None:
    assert command(["report", str(small), "--as", "vllm", "--html", str(tmp_path / "vllm.html")]) == 0
    assert "mean_ttft_ms" in (tmp_path / "vllm.html").read_text() or "ttft" in (tmp_path / "vllm.html").read_text()


def test_report_writes_the_file_and_says_where(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(small), "--html", str(tmp_path / "r.html")]) == 0
    told = capsys.readouterr()
    assert told.out == "" and "r.html" in told.err
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_html_and_json_at_once_is_a_mistake(small: Path, tmp_path: Path) -> None:
    assert command(["report", str(small), "--json", "--html", str(tmp_path / "r.html")]) == 2


def test_a_file_that_cannot_be_written_is_one_line(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be written"):
        write_html(small, tmp_path / "no" / "such" / "folder.html")
    write_page("whole", tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("file", ["result.json", REQUESTS])
def test_a_damaged_run_names_its_file(tmp_path: Path, file: str) -> None:
    path = write_run(tmp_path / "run", rows(20))
    (path / file).write_bytes(b"\x00 not this")
    with pytest.raises(FileError, match="run"):
        run_page(path)


def test_tables_of_an_older_run_that_lack_a_column_are_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rows(20))
    frame = polars.read_parquet(path / REQUESTS)
    frame.drop("reasoning_field", "refusal").write_parquet(path / REQUESTS)
    assert "small-1b" in run_page(path)


def test_requests_are_read_back_with_the_events_of_each_choice(tmp_path: Path) -> None:
    first, second = (row for row in rows(2, events=5))
    choice = first.choices[0]
    other = type(choice)(1, tuple(at + 9 for at in choice.times_ns[:3]), choice.reads[:3], (1, 1, 3), 1, "stop", 5)
    two = msgspec.structs.replace(first, n=2, choices=(choice, other))
    write_tables(tmp_path, [two, second])
    with open_tables(tmp_path) as tables:
        assert tables.rows_at([1, 0]) == {0: two, 1: second}
        assert [msgspec.structs.replace(row, choices=()) for row in (two, second)] == list(tables.rows())


def test_a_servers_columns_become_its_strip_and_never_touch_the_clients(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rows(20))
    frame = polars.read_parquet(path / REQUESTS)
    told = {"server_queue_s": 0.01, "server_prefill_s": 0.02, "server_first_token_s": 0.0, "server_decode_s": 0.3}
    frame.with_columns(**{name: polars.lit(value) for name, value in told.items()}).write_parquet(path / REQUESTS)
    line = Seen(run_page(path)).chart_specs()["timeline-data"]["rows"][3]
    assert [(part["kind"], part["ms"]) for part in line["server"]] == [
        ("queue", 10), ("prefill", 20), ("first_token", 0), ("decode", 300),
    ]  # fmt: skip
    assert line["laid"] == []


@pytest.mark.parametrize(("n", "off"), [(120, 1e-3), (900, 0.3)])  # of 900, evenly spaced ones are read
def test_a_mean_of_the_servers_time_weighs_neither_the_warm_up_nor_the_slowest_that_are_drawn(
    tmp_path: Path, n: int, off: float
) -> None:
    path = write_run(tmp_path / "run", rows(n))
    frame = polars.read_parquet(path / REQUESTS)
    ttft = polars.col("first_token_ns") - polars.col("send_start_ns")
    slow = (polars.col("phase") == "warmup") | (ttft.rank(descending=True) <= n // 15)
    queue = polars.when(slow).then(7.0).otherwise(0.1).alias("server_queue_s")
    told = frame.with_columns(queue, server_prefill_s=polars.lit(0.02), server_decode_s=polars.lit(0.3))
    told.write_parquet(path / REQUESTS)
    kept = told.filter((polars.col("phase") == "measured") & (polars.col("outcome") == "ok"))[
        "server_queue_s"
    ].to_list()
    document = json.loads((path / "result.json").read_bytes()) | {"budget": BUDGET}
    text = "".join(Seen(run_page(path, document)).text)
    seen = re.search(r"queue ([0-9.]+) ms", text[text.index("SERVER: where") :])
    assert seen and float(seen[1]) == pytest.approx(1e3 * sum(kept) / len(kept), rel=off)


def test_the_windows_and_the_spans_of_a_budget_stand_on_the_page(small: Path) -> None:
    text = " ".join(Seen(run_page(small, json.loads((small / "result.json").read_bytes()) | {"budget": BUDGET})).text)
    for told in ("37 requests were joined", "2 fit more than one", "110 requests of the window", "12.3 ms", "queue: absent",
                 "One lump: two clocks", "queue_time_ms", "3 requests carry another warning", "2 ms lie inside the server"):  # fmt: skip
        assert told in text, told


def test_what_if_starts_at_the_parts_that_are_on_record_and_leaves_one_lump_else() -> None:
    seen = [Observation(input_tokens=100, output_tokens=20, ttft_s=0.1, tpot_s=0.02, e2e_s=0.48) for _ in range(30)]
    law = Law(base_s=0.05, per_input_token_s=0.0005, n=30, tpot_s=0.02)
    lump = start_of(law, seen, None)
    assert (lump.lump, lump.prefill_base, lump.queue, lump.ingress) == (50.0, 0.0, 0.0, 0.0)
    assert lump.prefill_per_token == 0.5
    parts = {
        "upload": 0.001,
        "ingress_delivery": 0.009,
        "queue": 0.03,
        "prefill": 0.06,
        "first_token": 0.0,
        "unattributed": 0.0,
    }
    told = start_of(law, seen, parts)
    assert (told.ingress, told.queue, told.prefill_base, told.lump) == (10.0, 30.0, pytest.approx(10.0), 0.0)
    total = (
        told.lump + told.ingress + told.queue + told.prefill_base + told.prefill_per_token * told.input + told.hand_off
    )
    assert total == pytest.approx(sum(parts.values()) * 1e3)
    steep = start_of(msgspec.structs.replace(law, per_input_token_s=0.01), seen, parts)
    assert steep.prefill_base == 0.0 and steep.prefill_per_token * 100 == pytest.approx(
        60.0
    )  # never more than the server told


def test_the_parts_of_a_run_are_its_servers_word_and_nothing_else() -> None:
    mean = {"ttft": {"queue": 0.1, "prefill": 0.2}}
    assert parts_of({"budget": {"mean": mean, "evidence": {}}}) == (None, "")
    found, words = parts_of({"budget": {"mean": mean, "evidence": {"prefill": {"llamacpp: `prompt_ms`": 3}}}})
    assert found == mean["ttft"] and "prompt_ms" in words
    window = {"vllm": {"mean": {"queue": 0.1, "prefill": 0.3}}}
    assert parts_of({"budget": {"mean": mean, "evidence": {}, "aggregate": window}})[0] == window["vllm"]["mean"]
    assert load_of({"workload": {"load": {"mode": "open", "rate_per_s": 4.0}}}) == 4.0
    assert load_of({"workload": {"load": {"mode": "closed"}}, "throughput": {"requests_per_s": 2.5}}) == 2.5


def text_of(run: Path, **more: Any) -> str:
    document = json.loads((run / "result.json").read_bytes()) | more
    return " ".join(Seen(run_page(run, document)).text)


def test_failures_stand_in_the_servers_own_words(small: Path) -> None:
    errors = [{"kind": "http_error", "status": 503, "message": f"no {SCRIPT}", "count": 7}]
    many = [{"kind": f"k{i}", "status": None, "message": None, "count": 1} for i in range(25)]
    text = text_of(small, errors=errors + many)
    assert f"no {SCRIPT}" in text and "503" in text and "And 6 other messages" in text and "no words" in text
    assert "What failed" not in text_of(small, errors=[])


def test_a_simulations_own_knowledge_has_its_section(small: Path) -> None:
    spread = {"mean": 0.002, "p50": 0.001, "p95": 0.004, "p99": 0.005, "max": 0.25}
    load = {"at_s": [0.0, 1.0, 2.0]} | {
        name: {"mean": 1.0, "max": 2, "over_time": [0, 1, 2]} for name in ("running", "waiting", "kv_share")
    }
    told = {
        "phases": {"queue": spread, "stall_preempted": spread}, "preemptions": 12, "warmup": {"requests": 40, "rule": "MSER-5"},
        "stability": {"stable": False, "evidence": "it grew"}, "load": load, "kv_tokens": {"all": 1000},
        "steps": {"all": {"time_share": {"compute": 0.25, "memory_bandwidth": 0.75}, "steps_bound_by": {"compute": 3}}},
    }  # fmt: skip
    text = text_of(small, simulation=told)
    for words in ("not steady: it grew", "Preemptions: 12", "stalled by preemption", "250", "memory bandwidth", "75 %"):
        assert words in text, words
    assert "What the simulator knows" not in text_of(small)


def test_another_tools_keys_and_what_cannot_be_recreated_are_on_its_page(small: Path, tmp_path: Path) -> None:
    assert command(["report", str(small), "--as", "vllm", "--html", str(tmp_path / "vllm.html")]) == 0
    text = " ".join(Seen((tmp_path / "vllm.html").read_text(encoding="utf-8")).text)
    assert "median_ttft_ms" in text and "As vLLM bench serve would print it" in text


def test_goodput_has_its_interval_and_what_other_limits_would_give(small: Path) -> None:
    goodput = {
        "per_s": 3.25, "ci95": [3.0, None], "good": 90, "bad": 10, "not_evaluable": 0, "unsent": 0, "binding": "ttft", "reason": None,
        "attainment": {"value": 0.9, "ci95": [0.8, 0.95]}, "objectives_s": {"ttft": 0.1}, "marginal": {"ttft": {"value": 0.9, "n": 100}},
        "sensitivity": {"0.5": 0.4, "2": 1.0},
    }  # fmt: skip
    text = text_of(small, goodput=goodput)
    assert (
        "3.25 good requests a second, 95 % interval [3, –]" in text and "× 0.5: 40 %" in text and "break ttft" in text
    )
