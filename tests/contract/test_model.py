"""A contract's mistakes: one line each, with the file and the path."""

from __future__ import annotations

import json

import pytest

from phasemeter.contract import words
from phasemeter.contract.model import KINDS, parse
from phasemeter.errors import FileError

HEAD = "phasemeter: 1\n"

MISTAKES = {
    "latency_slo: {ttft: {p59: 450 ms}}": "`latency_slo.ttft.p59` is no percentile I know: write p50, p90, p95, p99 or p99.9",
    "latency_slo: {ttft: {p100: 450 ms}}": "`latency_slo.ttft.p100` is no percentile I know",
    "latency_slo: {ttft: {p95: 450}}": "`latency_slo.ttft.p95` 450: the unit is missing",
    "latency_slo: {ttft: {p95: 3 req/s}}": "`latency_slo.ttft.p95` '3 req/s': `req/s` is no unit of time",
    "latency_slo: {ttft: {p95: -1 s}}": "`latency_slo.ttft.p95` '-1 s' is negative",
    "latency_slo: {tttf: {p95: 1 s}}": "`latency_slo.tttf` is no metric I know: did you mean `ttft`?",
    "latency_slo: {ttft: 450 ms}": "`latency_slo.ttft` should name a percentile",
    "latncy_slo: {ttft: {p95: 1 s}}": "`latncy_slo` is no key I know: did you mean `latency_slo`?",
    "capacity: {attainment: 99 %}": "`capacity` promises a share of good requests and says not what good is",
    "capacity: {objectives: {ttft: 1 s}, attainment: 120 %}": "`capacity.attainment` '120 %' is not between 0 and 1",
    "capacity: {objectives: {ttft: 1 s}, goodput: 3 ms}": "`capacity.goodput` '3 ms'",
    "capacity: {objectives: {itl: 30 ms}}": "`capacity.objectives.itl` has many values a request",
    "workload: {output_tokens: {fixed: 1}}\nlatency_slo: {tpot: {p95: 1 s}}": "`latency_slo.tpot` is a metric that no run could have",
    "workload: {stream: false}\nlatency_slo: {ttft: {p95: 1 s}}": "`latency_slo.ttft` is a metric that no run could have",
    "workload: {input_tokens: {lognormal: {median: 9, p95: 3}}}\nlatency_slo: {ttft: {p95: 1 s}}": "has median 9 above p95 3",
    "workload: {kind: chatty}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.kind` can't be 'chatty': did you mean `chat`?",
    "workload: {arrivals: {poisson: fast}}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.arrivals.poisson`",
    "phase_budget: {prefil: {p95: 1 s}}": "`phase_budget.prefil` is no key I know: did you mean `prefill`?",
    "observability: {client: [sennt]}": "`observability.client[0]` can't be 'sennt': did you mean `sent`?",
    "confidence: 12 %\nlatency_slo: {ttft: {p95: 1 s}}": "`confidence` is 12 %",
    "latency_slo: {ttft: {p95: 1 s, p95: 2 s}}": "line 2, column 32: no readable YAML: `p95` stands here twice",
    "latency_slo: [": "no readable YAML",
    "confidence: 95 %": "promises nothing",
    "latency_slo: {ttft: {p95: 0 ms}}": "`latency_slo.ttft.p95` is 0 ms: nothing takes no time",
    "capacity: {objectives: {ttft: 0 s}, attainment: 9 %}": "`capacity.objectives.ttft` is 0 s: nothing takes no time",
    "latency_slo: {ttft: {p50: 2 s, p95: 1 s}}": "`latency_slo.ttft.p95` is shorter than p50 allows",
    "latency_slo: {ttft: {p95: 1 s, p50: 2 s}}": "`latency_slo.ttft.p50` is longer than p95 allows",
    "latency_slo: {ttft: {p95: 1 s}}\ncapacity: {goodput: inf}": "`capacity.goodput` is inf: a goodput is a finite rate",
    "workload: {arrivals: {poisson: 2/s}}\ncapacity: {objectives: {ttft: 1 s}, goodput: 5/s}":
        "`capacity.goodput` is 5 good requests a second, and `workload.arrivals` offers 2",
    "workload: {api: openai.chatt}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.api` can't be 'openai.chatt': did you mean",
    "workload: {objective: ttft.p59}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.objective` 'ttft.p59' names no percentile",
    "service: {modle: x}\nlatency_slo: {ttft: {p95: 1 s}}": "`service.modle` is no key I know: did you mean `model`?",
    "latency_slo: {'vlm:ttft': {p95: 1 s}}": "`latency_slo.vlm:ttft` is no metric I know: did you mean `vllm:ttft`?",
    "workload: {classes: {a: {share: 50 %, latency_slo: {ttft: {p95: 1 s}}}}}": "has shares that add up to 50 %",
    "workload: {classes: {a: {share: 0 %}, b: {share: 1}}}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.classes.a.share` is 0",
    "workload: {classes: {a: {share: 1, arrivals: {poisson: 1/s}}}}\nlatency_slo: {ttft: {p95: 1 s}}":
        "`workload.classes.a.arrivals` stands in a class: classes share `workload.arrivals`",
    "latency_slo: {'vllm:nope': {p95: 1 s}}": "is no metric I know: write vllm:e2e, vllm:e2el, vllm:itl, vllm:tpot or vllm:ttft",
    "workload: {output_tokens: {uniform: [1, 1]}}\nlatency_slo: {tpot: {p95: 1 s}}": "is a metric that no run could have",
    "latency_slo: {ttft: {p95: 1e300 s}}": "`latency_slo.ttft.p95` is 1e300 s: longer than a year",
    "capacity: {}": "promises nothing",
    "cost: {price_per_hour: 2}": "promises nothing",
    "cost: {price_per_hour: .inf, per_million_output_tokens: 2}": "`cost.price_per_hour` is infinite",
    "capacity: {error_budget: 100 %}": "`capacity.error_budget` is 100 %: that allows every request to fail",
    "capacity: {objectives: {ttft: 1 s}, attainment: 0 %}": "`capacity.attainment` is 0: that promises nothing",
    "workload: {input_tokens: 1e300}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.input_tokens` '1e300' is more than can be counted",
    "workload: {input_tokens: 2e9}\nlatency_slo: {ttft: {p95: 1 s}}": "`workload.input_tokens` is '2e9': more than 1e+09",
    "service: {model: {a: b}}\nlatency_slo: {ttft: {p95: 1 s}}": "`service.model` should be text, a number, true or false",
    f"latency_slo: {{ttft: {{p95: {'9' * 5000}}}}}": "no readable YAML: Exceeds the limit",
    f"latency_slo: {{ttft: {{p95: '{'9' * 5000} ms'}}}}": "9… is no duration: it has to be finite",
    f"latency_slo: {'{a: ' * 3000}1{'}' * 3000}": "no readable YAML: brackets in brackets",
    'latency_slo: {"a\\nb\\e[31m": {p95: 1 s}}': "`latency_slo.a\\nb\\x1b[31m` is no metric I know",
    "latency_slo: !!python/object/apply:os.system [ls]": "no readable YAML: could not determine a constructor",
    "latency_slo: &a {ttft: *a}": "no readable YAML: found unconstructable recursive node",
    "latency_slo:\n\tttft: {p95: 1 s}": "line 3, column 1: no readable YAML: found character '\\t'",
    "latency_slo: {ttft: {p95: 1 s}}\n---\nphasemeter: 1": "line 3, column 1: no readable YAML: but found another document",
    f"# {'x' * 1_000_001}": "characters: a contract is a page long",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_with_file_and_path(text: str) -> None:
    with pytest.raises(FileError) as mistake:
        parse(HEAD + text, "c.yaml")
    line = str(mistake.value)
    assert line.startswith("c.yaml: ")
    assert MISTAKES[text] in line
    assert "\n" not in line
    assert mistake.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [("", "is empty"), ("latency_slo: {}", "phasemeter: 1"), ("phasemeter: 2", "version 1"), ("- a", "a list")],
)
def test_a_file_that_is_no_contract_says_what_it_lacks(text: str, part: str) -> None:
    with pytest.raises(FileError, match=part):
        parse(text, "c.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_parses_and_explains_each_of_its_lines(kind: str) -> None:
    contract = parse(words.starter(kind))
    text = "\n".join(words.explain(contract))
    assert contract.workload.kind == kind
    for line in contract.objectives:
        assert line.path in text


def test_a_percentile_in_words_is_the_share_that_has_to_keep_it() -> None:
    told = words.explain(parse(HEAD + "latency_slo: {ttft: {p99.9: 3 s}, e2e: {p50: 4 s}}"))
    assert any("99.9 % of requests have ttft" in line and "at most 3 s" in line for line in told)
    assert any("50 % of requests have e2e" in line and "at most 4 s" in line for line in told)


def test_each_request_is_held_to_the_tightest_promised_limit_where_no_objectives_stand() -> None:
    contract = parse(HEAD + "latency_slo: {ttft: {p50: 1 s, p99: 3 s}}\ncapacity: {attainment: 9 %}")
    assert contract.capacities[0].objectives == {"ttft": 1.0}


def test_classes_have_lines_of_their_own_and_inherit_the_rest() -> None:
    contract = parse(
        HEAD
        + "workload:\n  output_tokens: 64\n  classes:\n    fast: {share: 70 %, latency_slo: {ttft: {p95: 300 ms}}}\n"
        + "    slow: {share: 30 %, output_tokens: {uniform: [10, 20]}, latency_slo: {e2e: {p95: 9 s}}}\n"
    )
    assert [(o.path, o.workload_class) for o in contract.objectives] == [
        ("workload.classes.fast.latency_slo.ttft.p95", "fast"),
        ("workload.classes.slow.latency_slo.e2e.p95", "slow"),
    ]
    assert [c.output_tokens for c in contract.classes] == [{"fixed": 64}, {"uniform": {"min": 10, "max": 20}}]


def test_the_schema_is_json_and_closed() -> None:
    schema = json.loads(json.dumps(words.schema()))
    assert schema["additionalProperties"] is False
    assert "ttft" in schema["properties"]["latency_slo"]["properties"]
