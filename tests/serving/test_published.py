"""Published curves, where the data is: what docs/validation/simulator.md says, held within bounds."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from bench import simulator_validation as published

from phasemeter.serving.policies.sarathi import Sarathi

pytestmark = pytest.mark.skipif(not published.DATA.is_dir(), reason=f"../shared is not here: {published.DATA}")


def test_the_order_and_the_size_of_sarathis_ablation() -> None:
    """arXiv 2403.02310, table 4: hybrid batches have the best TTFT and the worst gaps, chunks alone the worst TTFT, both the best gaps."""
    found = {
        name: [published.ablated(make(), published.artifact(), 0.6, seed) for seed in range(3)]
        for name, (make, _, _) in published.METHODS.items()
    }
    ttft, tbt = ({name: fmean(run[i] for run in runs) for name, runs in found.items()} for i in (0, 1))
    assert ttft["hybrid batching only"] < ttft["both"] < ttft["chunked prefill only"]
    assert tbt["both"] < tbt["chunked prefill only"] < tbt["hybrid batching only"]
    for name, (_, its_ttft, its_tbt) in published.METHODS.items():
        assert ttft[name] == pytest.approx(its_ttft, rel=0.25) and tbt[name] == pytest.approx(its_tbt, rel=0.3)


def test_a_smaller_chunk_smooths_gaps_and_delays_the_first_token() -> None:
    ttft, tbt = zip(
        *(published.ablated(Sarathi(size), published.artifact(), 0.6, 1) for size in (2048, 512)), strict=True
    )
    assert ttft[0] < ttft[1] and tbt[0] > 1.5 * tbt[1]


@pytest.mark.parametrize("row", range(12))
def test_chunks_cost_what_figure_9_measured_and_no_more_than_a_quarter(row: int) -> None:
    """Both ways: 512 costs up to a fifth, 2,048 nothing. The artifact's 1,024 and its uncut 16,384 are slower than their neighbours."""
    rows = [r for r in published.rows_of("sarathi_osdi_figure-9_chunking-overhead.csv") if r["chunk_size"] != "16384"]
    prompt, chunk = int(rows[row]["prefill_length"]), int(rows[row]["chunk_size"])
    measured = float(rows[row]["prefill_execution_time_relative"])
    one = published.artifact()
    ours = published.in_chunks_s(one, prompt, chunk) / published.in_chunks_s(one, prompt, prompt)
    assert 0.99 <= ours <= 1.25
    if chunk != 1024 and prompt < 16_000:
        assert ours == pytest.approx(measured, abs=0.1)


def test_reserving_rules_hold_as_many_as_paged_attention_counted() -> None:
    """arXiv 2309.06180, figure 13a: 7.00, 9.81 and 13.62 are the memory's; the paged 30.42 follows the engine's speed (Little's law)."""
    seconds = 600.0
    requests = published.poisson(2, published.short_chat(seconds), 1)
    for rule, expected in (("max", 7.0), ("pow2", 9.81), ("oracle", 13.62)):
        assert published.batched(rule, "1 ms", requests, seconds)[0] == pytest.approx(expected, rel=0.06)
    slow, quick = (published.batched("paged", host, requests, seconds) for host in ("12 ms", "1 ms"))
    assert slow[0] == pytest.approx(30.42, rel=0.1) and quick[0] < 23
    for batch, service_s in (slow, quick):
        assert batch == pytest.approx(2 * service_s, rel=0.1)


@pytest.mark.parametrize("rule", ["max", "pow2", "oracle", "paged"])
def test_memory_holds_what_paged_attention_found_in_it(rule: str) -> None:
    """arXiv 2309.06180, figure 2: shares of tokens, of what is reserved for later ones, of internal and external fragmentation."""
    ours = published.shares_of(rule, published.poisson(2, published.short_chat(300.0), 1), 300.0)
    assert sum(ours) == pytest.approx(100)
    if rule == "paged":
        assert 100 * ours[0] / (100 - ours[3] - ours[4]) == pytest.approx(96.3, abs=1)
    else:
        assert ours[:4] == pytest.approx(published.PUBLISHED_SHARES[rule], abs=8)


def test_under_a_strict_limit_chunks_carry_three_times_what_whole_prompts_do() -> None:
    """arXiv 2403.02310: Yi-34B within 0.2 s at p99 between tokens: 3.7 × vLLM, 4.0 × Orca; ours 3.4 and 3.7."""
    one = published.artifact()
    wait_s, gap_s = published.carried(Sarathi(512), one, 1.1, 300)
    assert wait_s <= 2 and gap_s <= 0.2
    for make in (published.VllmV0, published.WholePrompts):
        assert published.carried(make(), one, 0.45, 300)[1] > 0.2


@pytest.mark.parametrize("system", ["DistServe", "vLLM"])
def test_attainment_follows_distserves_curves_up_to_saturation(system: str) -> None:
    """arXiv 2401.09670, figure 8: within 7 points. From 2.25 a second a GPU the split's queue grows, and a run's length decides."""
    lengths, draw = published.histories(), Random(1)
    chosen = [draw.choice(lengths) for _ in range(800)]
    plan, accelerators = published.split_plans()[system]
    curves = [r for r in published.rows_of("distserve_opt13b_sharegpt_digitised.csv") if r["system"] == system]
    for rate in (0.5, 1.5, 2.0):
        expected = next(
            float(r["slo_attainment_pct"]) for r in curves if r["x_kind"] == "rate_per_gpu" and float(r["x"]) == rate
        )
        ours = published.attainment(published.served(plan, published.poisson(rate * accelerators, chosen, 0)))
        assert ours == pytest.approx(expected, abs=6.5), rate
    middle = published.served(plan, published.poisson(1.5 * accelerators, chosen, 0))
    for row in curves:
        if row["x_kind"] == "slo_scale":
            ours = published.attainment(middle, float(row["x"]))
            assert ours == pytest.approx(float(row["slo_attainment_pct"]), abs=7), row["x"]
