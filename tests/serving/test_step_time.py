"""Step times: whole ticks that agree with their own lines, and formulas held against measured kernels."""

from __future__ import annotations

from itertools import pairwise
from math import hypot
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import FileError, UserError
from phasemeter.serving.analytic import (
    RESOURCES,
    Deployment,
    activation_reserve_bytes,
    check_parallelism,
    kv_capacity_tokens,
    step_parts,
    tiled,
)
from phasemeter.serving.hardware import accelerator, accelerators
from phasemeter.serving.models import model_shape, models
from phasemeter.serving.step_shape import BatchShape
from phasemeter.serving.step_time import AnalyticCost, CostModel, LinearCoefficients, LinearCost, TickedCost
from phasemeter.serving.tables import Curve, TableCost, read_tables

SHARED = Path(__file__).parents[3] / "shared"

DENSE = "layer,tokens,time_us\n" + "".join(
    f"{layer},{tokens},{time}\n"
    for layer, times in (("qkv_proj", (50, 60, 200)), ("layernorm", (2, 2, 4)), ("embedding", (3, 3, 5)))
    for tokens, time in zip((1, 64, 512), times, strict=True)
)
PER_SEQUENCE = "layer,sequences,time_us\nlm_head,1,1000\nlm_head,64,1200\n"
ATTENTION = (
    "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    + "".join(
        f"0,0,{n},{kv},{5 + n * kv * (0.01 if kv <= 512 else 0.015)}\n" for n in (1, 16, 64) for kv in (16, 512, 4096)
    )
    + "".join(f"{k},{kv},0,0,{10 + k * (k / 2 + kv) * 0.0001}\n" for k in (16, 256, 512) for kv in (0, 512, 4096))
)


def llama(**more: object) -> Deployment:
    return Deployment(model=model_shape("llama-3.1-8b"), hardware=accelerator("RTX4090"), **more)  # type: ignore[arg-type]


LINEAR = LinearCoefficients(
    prefill_s=(0.0181, 1.019e-4, 7.1e-9),
    decode_s=(0.01993, 6.27e-7, 3.85e-5),
    decode_large_s=(0.0172, 5e-7, 7e-5),
    large_batch=95,
)
COSTS: dict[str, CostModel] = {
    "analytic": AnalyticCost(llama()),
    "linear": LinearCost(LINEAR),
    "tables": TableCost(read_tables(DENSE, PER_SEQUENCE, ATTENTION, layers=4), 1e-4, 1e-5),
}


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 8000))
def test_a_decode_line_is_the_sum_of_its_steps(name: str, decodes: int, each: int) -> None:
    ticked = TickedCost(COSTS[name])
    contexts = decodes * each
    line = ticked.decode_line(decodes, contexts)
    for step in range(min(line.steps or 50, 50)):
        assert ticked.step_ticks(BatchShape(decodes, contexts + step * decodes)) == max(
            1, line.base + step * line.growth
        )


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 200),
    st.integers(1, 3000),
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 4096)), max_size=3),
)
def test_the_parts_add_up_to_the_step_and_the_largest_binds(
    name: str, decodes: int, each: int, chunks: list[tuple[int, int]]
) -> None:
    if not decodes and not chunks:
        return
    parts = COSTS[name].parts(decodes, decodes * each, chunks)
    values = (parts.compute_s, parts.memory_bandwidth_s, parts.kv_memory_s, parts.link_s, parts.host_s)
    assert parts.total_s == pytest.approx(COSTS[name].step_s(decodes, decodes * each, chunks))
    assert dict(zip(RESOURCES, values, strict=True))[parts.binding] == max(values) and min(values) >= 0


@pytest.mark.parametrize("name", COSTS)
def test_more_work_never_takes_less_time(name: str) -> None:
    cost = COSTS[name]
    times = [cost.step_s(n, n * 400, [(k, 0)]) for n, k in ((1, 16), (2, 16), (16, 64), (64, 256), (64, 512))]
    assert all(a <= b for a, b in pairwise(times))


def test_what_binds_depends_on_the_batch_and_not_on_a_rule() -> None:
    small, large = llama(sequence_overhead_s=0.0), llama(sequence_overhead_s=0.0)
    assert step_parts(small, 1, 500).binding == "memory_bandwidth"
    assert step_parts(large, 2000, 2000 * 10).binding == "compute"  # decode, and yet bound by compute
    assert step_parts(large, 0, 0, [(16, 0)]).binding == "memory_bandwidth"  # prefill, and yet bound by memory
    assert step_parts(large, 64, 64 * 16000).binding == "kv_memory"
    assert step_parts(llama(sequence_overhead_s=1e-3), 200, 200 * 100).binding == "host"
    split = Deployment(model=model_shape("llama-3.1-8b"), hardware=accelerator("L40S"), tensor_parallel=8)
    assert step_parts(split, 1, 100).binding == "link"


def test_the_roofline_is_smooth_at_the_knee() -> None:
    deployment = llama(step_overhead_s=0.0, sequence_overhead_s=0.0)
    model, hardware = deployment.model, deployment.hardware
    tokens = 160
    work = model.layers * model.active_layer_parameters
    compute = 2 * work * tokens / (hardware.compute_efficiency * hardware.peak_flops_per_s)
    memory = 2 * work / (hardware.memory_efficiency * hardware.memory_bytes_per_s)
    parts = step_parts(deployment, 0, 0, [(tokens, 0)])
    head = step_parts(deployment, 0, 0, [(1, 0)])
    assert parts.compute_s + parts.memory_bandwidth_s > hypot(compute, memory) > max(compute, memory)
    assert parts.total_s > head.total_s


def test_experts_are_read_as_tokens_touch_them() -> None:
    mixtral = model_shape("mixtral-8x7b")
    assert mixtral.read_layer_parameters(1) == pytest.approx(mixtral.active_layer_parameters)
    whole = mixtral.attention_parameters + mixtral.hidden * 8 + 8 * mixtral.expert_parameters
    assert mixtral.read_layer_parameters(1000) == pytest.approx(whole)


# billions, as the makers give them
PUBLISHED = {
    "llama-2-7b": 6.74, "llama-2-70b": 69.0, "llama-3.1-8b": 8.03, "qwen2.5-7b": 7.62, "qwen3-30b-a3b": 30.5, "mistral-7b": 7.24,
    "mixtral-8x7b": 46.7, "yi-34b": 34.4, "falcon-180b": 179, "opt-13b": 12.85, "opt-66b": 65.7,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_as_many_parameters_as_its_maker_says(name: str) -> None:
    assert model_shape(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_kv_of_512_tokens_of_opt_66b_is_distserves_figure() -> None:
    assert model_shape("opt-66b").kv_bytes_per_token() * 512 / 2**30 == pytest.approx(
        1.13, abs=0.01
    )  # arXiv 2401.09670, 3.3


def test_every_catalogue_entry_names_its_source() -> None:
    assert all(one.source for one in models().values()) and all(one.sources for one in accelerators().values())
    assert model_shape("meta-llama/Llama-3.1-8B-Instruct") is models()["llama-3.1-8b"]


def test_kv_capacity_is_what_vllm_resolved() -> None:
    deployment = llama()
    found = kv_capacity_tokens(deployment, 0.9, activation_reserve_bytes(deployment, 2048))
    assert found == pytest.approx(41_408, rel=0.02)  # vLLM 0.19 on an RTX 4090, LLMServingSim's recorded run


@pytest.mark.parametrize(
    ("model", "tp", "pp", "words"),
    [
        ("llama-3.1-8b", 3, 1, "32 heads"),
        ("qwen2.5-7b", 8, 1, "28 heads"),
        ("opt-125m", 1, 13, "12 layers"),
        ("opt-13b", 5, 1, "all-reduce"),
    ],
)
def test_parallelism_that_does_not_divide_is_refused(model: str, tp: int, pp: int, words: str) -> None:
    deployment = Deployment(
        model=model_shape(model), hardware=accelerator("H100"), tensor_parallel=tp, pipeline_parallel=pp
    )
    with pytest.raises(UserError, match=words):
        check_parallelism(deployment)


def test_a_model_that_does_not_fit_is_refused_with_the_sizes() -> None:
    deployment = Deployment(model=model_shape("llama-2-70b"), hardware=accelerator("H100"))
    with pytest.raises(UserError, match=r"does not fit: its weights take 138\.0 GB"):
        kv_capacity_tokens(deployment, 0.9, 1e9)


def test_a_curve_passes_its_knots_and_is_straight_between() -> None:
    curve = Curve((1, 64, 512), (5.0, 6.0, 20.0))
    assert [curve(x) for x in (1, 64, 512)] == pytest.approx([5, 6, 20])
    assert curve(288) == pytest.approx(13)


def test_tables_that_lack_a_column_or_hold_no_number_are_named() -> None:
    with pytest.raises(FileError, match=r"dense\.csv: no column `tokens`"):
        read_tables("layer,time_us\n", PER_SEQUENCE, ATTENTION, 1)
    with pytest.raises(FileError, match=r"per_sequence\.csv line 2: `x` is no number"):
        read_tables(DENSE, "layer,sequences,time_us\nlm_head,1,x\n", ATTENTION, 1)


def kernels_and_formula(hardware: str) -> tuple[TableCost, Deployment]:
    """Profiled kernels of Llama-3.1-8B, and the same as the formula sees it, both without the host's part."""
    folder = SHARED / "data" / "layer_profiles" / f"{hardware}_meta-llama_Llama-3.1-8B_bf16_tp1"
    if not folder.is_dir():
        pytest.skip(f"../shared is not here: {folder}")
    texts = [(folder / name).read_text() for name in ("dense.csv", "per_sequence.csv", "attention.csv")]
    tables = TableCost(read_tables(*texts, layers=32))
    deployment = Deployment(
        model=model_shape("llama-3.1-8b"), hardware=accelerator(hardware), step_overhead_s=0.0, sequence_overhead_s=0.0
    )
    return tables, deployment


@pytest.mark.parametrize("hardware", ["RTX4090", "RTXPRO6000"])
def test_the_formula_is_within_a_tenth_of_measured_kernels(hardware: str) -> None:
    tables, deployment = kernels_and_formula(hardware)
    for step in (
        (1, 500, []),
        (16, 8000, []),
        (64, 51200, []),
        (128, 64000, []),
        (0, 0, [(512, 0)]),
        (0, 0, [(2048, 0)]),
        (32, 16000, [(480, 512)]),
    ):
        assert step_parts(deployment, *step).total_s == pytest.approx(tables.step_s(*step), rel=0.1), step


def test_the_time_of_a_mixed_step_is_the_sum_of_its_parts() -> None:
    random = Random(4)
    for model, tensor in (("llama-3.1-8b", 1), ("llama-2-70b", 8), ("mixtral-8x7b", 2)):
        cost = AnalyticCost(Deployment(model=model_shape(model), hardware=accelerator("H100"), tensor_parallel=tensor))
        for _ in range(200):
            chunks = [(random.randrange(1, 2000), random.randrange(3000)) for _ in range(random.randrange(4))]
            decodes = random.randrange(0 if chunks else 1, 200)
            contexts = decodes * random.randrange(1, 2000)
            for _ in range(2):  # the second answer is remembered
                whole = cost.parts(decodes, contexts, chunks).total_s
                assert cost.step_s(decodes, contexts, chunks) == pytest.approx(whole, rel=1e-12)


def test_a_token_past_a_tile_costs_a_tile() -> None:
    """Sarathi-Serve (arXiv 2403.02310, section 4.3): on A100 a chunk of 257 takes 32 % more than one of 256."""
    deployment = Deployment(model=model_shape("yi-34b"), hardware=accelerator("A100-80G"), tensor_parallel=2)
    times = {chunk: step_parts(deployment, 0, 0, [(chunk, 0)]).total_s for chunk in (255, 256, 257, 384, 2048, 2049)}
    assert times[257] / times[256] == pytest.approx(1.32, abs=0.03)
    assert times[256] / times[255] < 1.01 and times[384] / times[257] < 1.03 and times[2049] / times[2048] < 1.07
    assert [tiled(n, 128) for n in (1, 129, 256, 257, 384, 385)] == [1, 129, 256, 384, 384, 512]
    assert tiled(1000, 1) == 1000


@pytest.mark.parametrize("hardware", ["RTX4090", "RTXPRO6000"])
def test_prefills_are_within_3_percent_of_measured_kernels_on_average(hardware: str) -> None:
    tables, deployment = kernels_and_formula(hardware)
    errors = [
        step_parts(deployment, 0, 0, [(n, 0)]).total_s / tables.step_s(0, 0, [(n, 0)]) - 1 for n in range(16, 2049, 16)
    ]
    assert abs(sum(errors)) / len(errors) < 0.01 and sum(map(abs, errors)) / len(errors) < 0.03
