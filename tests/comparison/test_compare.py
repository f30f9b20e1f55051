"""Comparable or not, and differences that are there when something moved and not when nothing did."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from phasemeter.cli.import_ import as_document
from phasemeter.comparison import difference, foreign
from phasemeter.comparison.comparable import Run, compared, named_metrics, pair
from phasemeter.comparison.report import compare, values_of
from phasemeter.errors import UserError
from tests.comparison.test_foreign import VLLM
from tests.contract.rows import row

MANIFEST = {
    "kind": "measured",
    "model": "m",
    "engine_version": "1",
    "arrivals": {"poisson": 4},
    "input_tokens": {"fixed": 64},
}


def run(name: str = "a", seed: int = 0, n: int = 200, slower: float = 1.0, inputs: int = 64, **manifest: Any) -> Run:
    """A run whose requests differ by chance: ttft lognormal, tpot about 20 ms with 8 % spread, times `slower`."""
    generator = np.random.default_rng(seed)
    ttft = 0.2 * generator.lognormal(0, 0.4, n)
    tpot = 0.02 * slower * generator.normal(1, 0.08, n)
    lengths = generator.integers(inputs - 8, inputs + 9, n)
    rows = [row(i, ttft=float(ttft[i]), tpot=float(tpot[i]), tokens=40, input_tokens=int(lengths[i])) for i in range(n)]
    values, known = values_of(rows)
    document = {
        "definitions": "phasemeter/1",
        "run": MANIFEST | manifest,
        "validity": {"verdict": "valid"},
        "metrics": {},
    }
    return Run(name=name, document=document, values=values, lengths=known)


def foreign_run(document: dict[str, Any], name: str) -> Run:
    (one,) = foreign.read(json.dumps(document), name)
    return Run(name=name, document=as_document(one), values={k: np.array(v) for k, v in one.values.items()})


def aiperf(**more: Any) -> Run:
    block = {
        "unit": "ms",
        "avg": 20.0,
        "p50": 20.0,
        "p99": 25.0,
        "min": 1.0,
        "max": 30.0,
        "std": 3.0,
        "count": 90,
        "sum": 1.0,
    }
    names = ("time_to_first_token", "time_to_first_output_token", "inter_token_latency", "inter_chunk_latency")
    counts = {"output_sequence_length": block, "usage_completion_tokens": block}
    head = {"aiperf_version": "0.13.0", "schema_version": "1.4", "input_config": {"endpoint": {"type": "chat"}}}
    return foreign_run(head | dict.fromkeys(names, block) | counts | more, "aiperf.json")


def test_equal_runs_are_comparable_and_nothing_moved() -> None:
    report = compare([run("a", 1)], [run("b", 2)], np.random.default_rng(0))
    assert report.answer.comparable
    assert {d.metric for d in report.differences} >= {"ttft", "tpot", "e2e"}
    assert not any(d.significant for d in report.differences)


def test_a_manifest_field_that_differs_is_a_refusal_naming_it_unless_it_is_under_test() -> None:
    a, b = run("a"), run("b", 1, engine_version="2")
    refused = compared([a], [b])
    assert not refused.comparable
    assert refused.refusals == ("engine_version differs: 1 in a, 2 in b (under test? --varying engine_version)",)
    assert compared([a], [b], ["engine.version"]).comparable


def test_runs_that_stand_on_both_sides_are_compared_like_any_other() -> None:
    again = [run(name, seed) for seed, name in enumerate("ab")]
    assert compared([run(name, seed) for seed, name in enumerate("ab")], again).comparable


def test_an_unrecorded_field_is_a_warning_not_a_refusal() -> None:
    answer = compared([run("a")], [run("b", 1, engine_version=None)])
    assert answer.comparable
    assert "engine_version: unrecorded in b, '1' in a" in answer.warnings


def test_a_changed_input_length_distribution_is_a_refusal_naming_it() -> None:
    answer = compared([run("a")], [run("b", 1, inputs=72)])
    assert not answer.comparable
    assert "input_tokens as realised differ" in answer.refusals[0]
    asked = compared([run("a")], [run("b", 1, input_tokens={"fixed": 128})])
    assert "input_tokens differs" in asked.refusals[0]


def test_an_invalid_run_is_refused_with_its_checks() -> None:
    bad = run("b", 1)
    checks = {"verdict": "invalid", "checks": [{"id": "clock_step", "verdict": "invalid"}]}
    answer = compared(
        [run("a")], [Run(name="b", document=dict(bad.document) | {"validity": checks}, values=bad.values)]
    )
    assert answer.refusals == ("b is no valid run: clock_step",)


def test_varying_a_field_that_no_manifest_has_is_a_mistake() -> None:
    with pytest.raises(UserError, match="is no field of a manifest"):
        compared([run("a")], [run("b")], ["engine.colour"])


def test_a_5_percent_slower_decode_is_found_with_its_sign_and_an_interval() -> None:
    report = compare([run("a", 1, 500)], [run("b", 2, 500, slower=1.05)], np.random.default_rng(0))
    (tpot,) = [d for d in report.differences if d.metric == "tpot" and d.statistic == "mean"]
    assert tpot.significant
    low, high = tpot.ci95
    assert low is not None
    assert high is not None
    assert 0 < low < 0.001 < high + 0.0003
    assert not any(d.significant for d in report.differences if d.metric == "ttft")


def test_of_pairs_of_equal_runs_few_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Family-wise: at most a tenth of pairs with anything flagged (5 % wanted); 40 pairs, resamples cut for speed."""
    monkeypatch.setattr(difference, "RESAMPLES", 120)
    monkeypatch.setattr(difference, "PERMUTATIONS", 299)
    generator = np.random.default_rng(5)
    flagged = 0
    for i in range(40):
        report = compare([run("a", 2 * i, 150)], [run("b", 2 * i + 1, 150)], generator)
        flagged += any(d.significant for d in report.differences)
    assert flagged <= 4


def test_runs_are_the_sample_where_there_are_three_a_side() -> None:
    a = [run(f"a{i}", i) for i in range(3)]
    b = [run(f"b{i}", 9 + i, slower=1.1) for i in range(3)]
    report = compare(a, b, np.random.default_rng(0))
    (tpot,) = [d for d in report.differences if d.metric == "tpot" and d.statistic == "mean"]
    assert (tpot.n_a, tpot.n_b, tpot.significant) == (3, 3, True)


def test_holm_is_the_textbook_correction() -> None:
    made = [
        difference.Difference(metric="m", statistic=str(i), a=1, b=1, p_value=p)
        for i, p in enumerate((0.04, 0.01, 0.03))
    ]
    assert [d.p_adjusted for d in difference.holm(made)] == pytest.approx([0.06, 0.03, 0.06])


def test_aiperfs_inter_token_latency_is_vllms_tpot_and_not_its_itl() -> None:
    a, b = aiperf(), foreign_run(VLLM, "vllm.json")
    answer = compared([a], [b], asked=("inter_token_latency", "tpot"))
    assert [(x.name, y.name) for x, y in answer.pairs] == [("inter_token_latency", "tpot")]
    refused = compared([a], [b], asked=("inter_token_latency", "itl"))
    assert not refused.comparable
    assert "(last_token − first_token) / (output_tokens − 1)" in refused.refusals[0]
    assert "gap per server-sent event" in refused.refusals[0]
    both = pair(a, b)
    assert any("is not itl of" in text for text in both[1])


def test_another_token_count_refuses_what_divides_by_it_and_nothing_else() -> None:
    other = {"unit": "ms", "avg": 1.0, "sum": 7.0}
    pairs, refusals, _ = pair(aiperf(usage_completion_tokens=other), foreign_run(VLLM, "vllm.json"))
    assert "inter_token_latency" not in {mine.name for mine, _ in pairs}
    assert any("two token counts: a local tokenizer; server usage" in text for text in refusals)
    assert ("time_to_first_token", "ttft") in {(x.name, y.name) for x, y in pairs}


def test_reasoning_that_only_one_tool_sees_is_another_treatment() -> None:
    late = {"unit": "ms", "avg": 900.0, "sum": 999.0}
    pairs, refusals, _ = pair(aiperf(time_to_first_output_token=late), foreign_run(VLLM, "vllm.json"))
    assert ("time_to_first_token", "ttft") not in {(x.name, y.name) for x, y in pairs}
    assert any("treat reasoning differently" in text for text in refusals)


def test_aiperfs_ttfo_is_the_counterpart_of_genai_perfs_ttft() -> None:
    block = {"unit": "ms", "avg": 200.0, "p99": 230.0}
    genai = foreign_run({"time_to_first_token": block, "request_latency": block}, "genai.json")
    names = {(x.name, y.name) for x, y in pair(aiperf(), genai)[0]}
    assert ("time_to_first_output_token", "time_to_first_token") in names
    assert ("time_to_first_token", "time_to_first_token") not in names


def test_our_rows_are_read_under_another_tools_definitions() -> None:
    values, _ = values_of([row(i) for i in range(20)], "vllm")
    assert values["tpot"] == pytest.approx([0.02] * 20)
    ours = Run(name="a", document={"definitions": "vllm@0.33", "run": {}, "metrics": {}}, values=values)
    assert "e2el" in {metric.name for metric in named_metrics(ours)}


@pytest.mark.parametrize(
    ("prefill", "words"), [(None, "can't be named"), (0.5, "faster prefill"), (1.0, "neither queue nor prefill")]
)
def test_a_fall_of_ttft_is_called_faster_prefill_only_with_server_evidence(prefill: float | None, words: str) -> None:
    sides = []
    for name, factor in (("a", 1.0), ("b", 0.5)):
        base = run(name, 3)
        values = dict(base.values) | {"ttft": base.values["ttft"] * factor}
        spread = 1 + 0.01 * np.random.default_rng(4).standard_normal(200)
        phases = {} if prefill is None else {"prefill": 0.1 * (prefill if name == "b" else 1.0) * spread}
        sides.append(Run(name=name, document=base.document, values=values, lengths=base.lengths, phases=phases))
    report = compare([sides[0]], [sides[1]], np.random.default_rng(0))
    assert words in report.causes[0]


def test_a_gap_per_retokenised_token_is_not_a_gap_per_chunk() -> None:
    block = {"mean": 0.02, "median": 0.02, "p99": 0.03}
    document = {
        "load_summary": {},
        "successes": {"count": 9, "latency": {"inter_token_latency": block}},
        "failures": {},
    }
    answer = compared([foreign_run(document, "ip.json")], [foreign_run(VLLM, "vllm.json")])
    assert not answer.comparable
    assert "inter_token_latency of ip.json is not itl of vllm.json" in answer.refusals[0]
