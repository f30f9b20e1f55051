"""The simulator against published figures and recorded runs: every number of docs/validation/simulator.md.

    python bench/simulator_validation.py [SECTION ...]

Needs the data of others that SOURCES.md there lists, in ../shared beside the repository. Sections: kernels, runs, memory, shares, split,
apart, chunks, ablation, capacity, steps. Together about four minutes.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles

import msgspec
import numpy as np

from phasemeter.serving.analytic import Deployment, kv_capacity_tokens, step_parts
from phasemeter.serving.cluster import Replicas
from phasemeter.serving.deploy import build
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Event, Finished, Tokens, Truth
from phasemeter.serving.hardware import accelerator
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.models import model_shape
from phasemeter.serving.plan import parse_plan
from phasemeter.serving.policies.sarathi import Sarathi
from phasemeter.serving.policies.vllm_v0 import VllmV0
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import NO_CHUNKS, Chunk, Limits, Plain, Policy, State
from phasemeter.serving.step_time import AnalyticCost, TickedCost
from phasemeter.serving.tables import TableCost, read_tables

SHARED = Path(__file__).parents[2] / "shared"
DATA = SHARED / "data"
ANY = "workload: {input_tokens: 100, output_tokens: 100, arrivals: {poisson: 1/s}}\n"
PAGED_ATTENTION = (
    "deployment: {{model: opt-13b, hardware: A100-40G, kv_tokens: 15700, max_model_len: 2048, "
    "max_num_batched_tokens: 2560, step_time: {{step_overhead: {overhead}}}, {policy}}}"
)
Lengths = list[tuple[int, int]]


def rows_of(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def sharegpt() -> Lengths:
    """(prompt, answer) of Sarathi-Serve's openchat_sharegpt4 trace."""
    with next((SHARED / "traces").glob("sarathi_sharegpt*.csv")).open() as file:
        pairs = [(int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])) for row in csv.DictReader(file)]
    return [(prompt, answer) for prompt, answer in pairs if prompt > 0 and answer > 0]


def poisson(rate_per_s: float, lengths: Iterable[tuple[int, int]], seed: int) -> list[Request]:
    random, t, found = Random(seed), 0.0, []
    for number, (prompt, answer) in enumerate(lengths):
        t += random.expovariate(rate_per_s)
        found.append(
            Request(
                request_id=str(number),
                prompt_tokens=prompt,
                output_tokens=answer,
                arrival_ns=round(t * 1e9),
                max_tokens=answer,
            )
        )
    return found


def served(plan: str, requests: list[Request], profile: Path | None = None) -> list[Truth]:
    def read(name: str) -> list[str]:
        assert profile is not None
        return (profile / Path(name).name).read_text().splitlines(keepends=True)

    serving = build(parse_plan(ANY + plan, read=read), tokens=False)
    events: list[Event] = []
    for request in requests:
        events += serving.advance(request.arrival_ns - 1)
        serving.submit(request.arrival_ns, request)
    while (due := serving.due_ns()) is not None:
        events += serving.advance(due)
    truths = {e.request_id: e.truth for e in events if isinstance(e, Finished)}
    return [truths[request.request_id] for request in requests]


def ttft_s(truth: Truth) -> float:
    return (truth.first_token_ns - truth.arrival_ns) / 1e9


def tpot_s(truth: Truth) -> float:
    return (truth.finish_ns - truth.first_token_ns) / 1e9 / max(1, truth.output_tokens - 1)


def over(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %"


def profile_of(hardware: str) -> Path:
    return DATA / "layer_profiles" / f"{hardware}_meta-llama_Llama-3.1-8B_bf16_tp1"


def kernels() -> None:
    """The formula against measured kernels of Llama-3.1-8B, the host's part left out."""
    print("accelerator   steps              mean error   mean |error|   largest")
    for hardware in ("RTX4090", "RTXPRO6000"):
        texts = [(profile_of(hardware) / f"{name}.csv").read_text() for name in ("dense", "per_sequence", "attention")]
        tables = TableCost(read_tables(*texts, layers=32))
        one = Deployment(
            model=model_shape("llama-3.1-8b"),
            hardware=accelerator(hardware),
            step_overhead_s=0.0,
            sequence_overhead_s=0.0,
        )
        steps: dict[str, list[tuple[int, int, list[tuple[int, int]]]]] = {
            "prefills": [(0, 0, [(n, 0)]) for n in range(16, 2049, 16)],
            "decodes": [(n, n * each, []) for n in (1, 4, 16, 64, 128, 200) for each in (128, 512, 2048)],
            "mixed": [(n, 500 * n, [(k, 0)]) for n in (16, 64, 120) for k in range(16, 900, 37)],
        }
        for name, shapes in steps.items():
            errors = [step_parts(one, *shape).total_s / tables.step_s(*shape) - 1 for shape in shapes]
            size = [abs(error) for error in errors]
            print(
                f"{hardware:12}  {name:12}{100 * fmean(errors):14.1f} %{100 * fmean(size):13.1f} %{100 * max(size):9.1f} %"
            )


RUNS = {"RTX4090": "max_num_seqs: 256, kv_tokens: 41408", "RTXPRO6000": "max_num_seqs: 128"}


def runs() -> None:
    """vLLM 0.19 serving 300 ShareGPT requests: what it measured of itself, and the simulator with nothing fitted to it."""
    print(
        "run         step time   mean TTFT: real, ours            mean TPOT: real, ours         waiting of TTFT   finished"
    )
    for hardware, limits in RUNS.items():
        folder = DATA / "vllm_runs" / f"{hardware}_Llama-3.1-8B"
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        rows.sort(key=lambda row: float(row["queued_ts"]))
        begin = rows[0]["queued_ts"]
        requests = [
            Request(
                request_id=str(number),
                prompt_tokens=row["input_toks"],
                output_tokens=row["output_toks"],
                arrival_ns=round((row["queued_ts"] - begin) * 1e9),
            )
            for number, row in enumerate(rows)
        ]
        ttft = fmean(row["first_token_ts"] - row["queued_ts"] for row in rows)
        wait = fmean(row["scheduled_ts"] - row["queued_ts"] for row in rows)
        several = [row for row in rows if row["output_toks"] > 1]
        tpot = fmean((row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in several)
        end = max(row["last_token_ts"] for row in rows) - begin
        for name, more in (("formula", ""), ("tables", ", step_time: {tables: here}")):
            plan = f"deployment: {{model: llama-3.1-8b, hardware: {hardware}, max_num_batched_tokens: 2048, {limits}{more}}}"
            truths = served(plan, requests, profile_of(hardware))
            ours = fmean(map(ttft_s, truths)), fmean(tpot_s(one) for one in truths if one.output_tokens > 1)
            finished = max(one.finish_ns for one in truths) / 1e9
            print(
                f"{hardware:11} {name:8}  {ttft:7.2f} s {ours[0]:7.2f} s {over(ours[0], ttft):>8}   {1e3 * tpot:6.1f} ms"
                f" {1e3 * ours[1]:6.1f} ms {over(ours[1], tpot):>8}   {100 * wait / ttft:6.1f} %   {over(finished, end):>8}"
            )
        before = [number for number, row in enumerate(rows[1:], 1) if row["queued_ts"] - begin < 4]
        early = fmean(rows[n]["first_token_ts"] - rows[n]["queued_ts"] for n in before)
        ours_early = fmean(ttft_s(truths[n]) for n in before)
        print(
            f"  in the first 4 s ({len(before)} requests): real {1e3 * early:.0f} ms, tables {1e3 * ours_early:.0f} ms"
        )


def short_chat(seconds: float) -> Lengths:
    """ShareGPT's single turns as PagedAttention had them: log-normal, 161 in and 338 out on average before the model's limit."""
    random, found = Random(1), []
    wide_in, wide_out = sqrt(2 * log(161.31 / 60)), sqrt(2 * log(337.99 / 220))
    for _ in range(round(2 * seconds)):
        prompt = round(60 * exp(wide_in * random.gauss(0, 1)))
        answer = round(220 * exp(wide_out * random.gauss(0, 1)))
        found.append((max(4, min(1024, prompt)), max(1, min(1024, answer))))
    return found


def batched(rule: str, overhead: str, requests: list[Request], seconds: float) -> tuple[float, float]:
    """(time average of requests that have started and not finished, mean seconds from start to finish) for a rule of memory."""
    policy = "policy: vllm_v0" if rule == "paged" else f"policy: orca, policy_options: {{reserve: {rule}}}"
    truths = served(PAGED_ATTENTION.format(overhead=overhead, policy=policy), requests)
    low, high = 0.1 * seconds * 1e9, seconds * 1e9
    spans = [min(one.finish_ns, high) - max(one.prefill_start_ns, low) for one in truths]
    service = fmean((one.finish_ns - one.prefill_start_ns) / 1e9 for one in truths)
    return sum(max(0, span) for span in spans) / (high - low), service


def memory() -> None:
    """Mean batched requests of OPT-13B on A100-40G at 2 req/s: PagedAttention, figure 13a, by the memory's rule."""
    published = {"max": 7.00, "pow2": 9.81, "oracle": 13.62, "paged": 30.42}
    seconds = 1800.0
    requests = poisson(2, short_chat(seconds), 1)
    print("host a step   " + "".join(f"{name:>16}" for name in published))
    print("published     " + "".join(f"{value:16.2f}" for value in published.values()))
    for overhead in ("1 ms", "8 ms", "12 ms"):
        cells = [batched(rule, overhead, requests, seconds)[0] for rule in published]
        print(f"{overhead:14}" + "".join(f"{value:16.2f}" for value in cells))


def shares_of(rule: str, requests: list[Request], seconds: float) -> list[float]:
    """Time averages in percent for a rule of memory: tokens, reserved, internal and external fragmentation, free."""
    policy = "policy: vllm_v0" if rule == "paged" else f"policy: orca, policy_options: {{reserve: {rule}}}"
    serving = build(parse_plan(ANY + PAGED_ATTENTION.format(overhead="12 ms", policy=policy)), tokens=False)
    assert isinstance(serving, Replicas)
    engine = serving.engines[0]
    assert isinstance(engine, Engine)
    coming, found = list(requests[::-1]), []
    for second in range(1, round(seconds)):
        while coming and coming[-1].arrival_ns <= second * 10**9:
            request = coming.pop()
            engine.advance(request.arrival_ns - 1)
            engine.submit(request.arrival_ns, request)
        engine.advance(second * 10**9)
        if second > 0.1 * seconds:
            found.append(engine.kv_shares())
    return [100 * fmean(column) for column in zip(*found, strict=True)]


PUBLISHED_SHARES = {
    "max": (20.4, 13.3, 57.3, 8.9), "pow2": (26.8, 17.9, 13.6, 41.6), "oracle": (38.2, 25.2, 0.0, 36.6), "paged": (96.3,),
}  # fmt: skip


def shares() -> None:
    """What KV memory holds: PagedAttention, figure 2, published | ours. Paged: of the memory in use."""
    requests = poisson(2, short_chat(600.0), 1)
    print("                 tokens  reserved  internal  external")
    for rule, published in PUBLISHED_SHARES.items():
        ours = shares_of(rule, requests, 600.0)
        if rule == "paged":
            ours = [100 * ours[0] / (100 - ours[3] - ours[4])]
        print(f"{rule:8} published " + "".join(f"{value:8.1f}" for value in published))
        print(f"{'':8} ours      " + "".join(f"{value:8.1f}" for value in ours[: len(published)]))


def coefficients(system: str, parallel: int) -> str:
    found = json.loads((DATA / f"profiler-a100-80g.{system}.json").read_text())["facebook/opt-13b"][str(parallel)]
    prefill, small, large = (
        [value / 1000 for value in found[name]] for name in ("prefill", "decoding_smallbs", "decoding_largebs")
    )
    return f"{{linear: {{prefill_s: {prefill}, decode_s: {small}, decode_large_s: {large}, large_batch: 95}}}}"


def split_plans() -> dict[str, tuple[str, int]]:
    """(plan, accelerators) of DistServe's figure 8 for OPT-13B on ShareGPT, each with its own engine's speed."""
    one = "deployment: {model: opt-13b, hardware: A100-80G, "
    return {
        "DistServe": (
            one + "max_num_batched_tokens: 8192, max_num_seqs: 128, split: {link: {bytes_per_s: 300 GB/s}, "
            f"prefill: {{tensor_parallel: 2, kv_tokens: 163008, step_time: {coefficients('distserve', 2)}}}, "
            f"decode: {{kv_tokens: 66144, step_time: {coefficients('distserve', 1)}}}}}}}",
            3,
        ),
        "vLLM": (
            one
            + f"policy: vllm_v0, kv_tokens: 66144, max_num_batched_tokens: 16384, step_time: {coefficients('vllm', 1)}}}",
            1,
        ),
    }


def histories() -> Lengths:
    """Conversations below 2,048 tokens, stretched to the means of DistServe's figure 7: 755.5 in, 200.3 out."""
    pairs = [(prompt, answer) for prompt, answer in sharegpt() if prompt + answer < 2048]
    longer = 755.5 / fmean(p for p, _ in pairs)
    shorter = 200.3 / fmean(a for _, a in pairs)
    scaled = [(round(prompt * longer), max(1, round(answer * shorter))) for prompt, answer in pairs]
    return [(prompt, answer) for prompt, answer in scaled if prompt + answer < 2048]


def attainment(truths: list[Truth], scale: float = 1.0) -> float:
    return 100 * fmean(ttft_s(one) <= 0.25 * scale and tpot_s(one) <= 0.1 * scale for one in truths)


def split() -> None:
    """Share of requests within TTFT 250 ms and TPOT 100 ms, by rate and by a scale of both, against the paper's curves."""
    lengths = histories()
    print(f"lengths: {fmean(p for p, _ in lengths):.0f} in, {fmean(a for _, a in lengths):.0f} out on average")
    curves = rows_of("distserve_opt13b_sharegpt_digitised.csv")
    for system, (plan, accelerators) in split_plans().items():
        draw = Random(1)
        long_run = [draw.choice(lengths) for _ in range(1500)]
        for kind in ("rate_per_gpu", "slo_scale"):
            print(f"{system}, {kind}: published | 1,500 requests | mean of 10 runs of 100")
            fixed = served(plan, poisson(1.5 * accelerators, long_run, 0)) if kind == "slo_scale" else []
            for row in curves:
                if row["system"] != system or row["x_kind"] != kind:
                    continue
                x = float(row["x"])
                if kind == "slo_scale":
                    print(f"  {x:5.2f}   {float(row['slo_attainment_pct']):6.1f} | {attainment(fixed, x):6.1f}")
                    continue
                rate = x * accelerators
                whole = attainment(served(plan, poisson(rate, long_run, 0)))
                short = fmean(
                    attainment(served(plan, poisson(rate, long_run[100 * run : 100 * run + 100], run)))
                    for run in range(10)
                )
                print(f"  {x:5.2f}   {float(row['slo_attainment_pct']):6.1f} | {whole:6.1f} | {short:6.1f}")


def highest(good: Callable[[float], bool], low: float, high: float) -> float:
    """The highest rate between two that is good, to 2 %."""
    while high > 1.02 * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def apart() -> None:
    """DistServe, figure 1: OPT-13B, 512 in and 64 out on one A100, req/s with p90 TTFT within 0.4 s and p90 TPOT within 0.04 s."""
    one = "deployment: {model: opt-13b, hardware: A100-80G, max_num_batched_tokens: "
    pool = f"kv_tokens: 66144, step_time: {coefficients('distserve', 1)}"
    halves = (
        one + "8192, max_num_seqs: 128, split: {link: {bytes_per_s: 300 GB/s}, "
        f"prefill: {{replicas: REPLICAS_P, {pool}}}, decode: {{replicas: REPLICAS_D, {pool}}}}}}}"
    )
    together = one + f"16384, policy: vllm_v0, kv_tokens: 66144, step_time: {coefficients('vllm', 1)}}}"
    prefill, decode = (halves.replace("REPLICAS_P", p).replace("REPLICAS_D", d) for p, d in (("1", "6"), ("8", "1")))

    def within(plan: str, rate: float, ttft: float, tpot: float) -> bool:
        truths = served(plan, poisson(rate, [(512, 64)] * 1500, 0))
        return quantiles(map(ttft_s, truths), n=10)[-1] <= ttft and quantiles(map(tpot_s, truths), n=10)[-1] <= tpot

    for name, published, plan, limits in (
        ("together", 1.6, together, (0.4, 0.04)),
        ("prefill alone", 5.6, prefill, (0.4, 9.0)),
        ("decode alone", 10.0, decode, (9.0, 0.04)),
    ):
        found = highest(lambda rate, plan=plan, limits=limits: within(plan, rate, *limits), 0.2, 40.0)  # type: ignore[misc]
        print(f"  {name:14} published {published:5.1f} | ours {found:5.1f}")


class Alternating(Plain):
    """Sarathi-Serve's "chunked prefills only": a chunk of prompts, then a step of decodes, never both in one."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size, self.prompts_last = chunk_size, False

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes, budget = state.kv, state.decodes, self.chunk_size
        chunks: list[Chunk] = []
        if not (self.prompts_last and decodes.count):
            for sequence in state.prefilling:
                chunks.append((sequence, min(sequence.target - sequence.computed, budget)))
                budget -= chunks[-1][1]
            while state.waiting and budget > 0 and state.seats < state.limits.max_num_seqs:
                head = state.waiting[0]
                if kv.needed(head, head.target) > kv.free - kv.total // 100:
                    break
                chunks.append((state.admit(head.target), min(head.target, budget)))
                budget -= chunks[-1][1]
        self.prompts_last = bool(chunks)
        if chunks:
            return chunks, False
        while decodes.blocks_due() > kv.free:
            state.preempt(next(reversed(state.running)))
        return NO_CHUNKS, True


def yi(efficiency: float, overhead_s: float) -> Deployment:
    """Yi-34B on two A100 as the artifact ran it: efficiency and host time read off its own prefills (figure 2)."""
    hardware = msgspec.structs.replace(
        accelerator("A100-80G"), compute_efficiency=efficiency, step_overhead_s=overhead_s
    )
    return Deployment(model=model_shape("yi-34b-200k"), hardware=hardware, tensor_parallel=2)


def artifact() -> Deployment:
    return yi(0.62, 0.012)


def chunks() -> None:
    """Sarathi-Serve's artifact: figure 2 (a prefill, a decode), figure 9 (a prompt in chunks over the same uncut)."""
    for part in ("prefill", "decode"):
        print(f"figure 2, {part}: tokens, measured ms, catalogue's A100, A100 as fast as the artifact")
        for row in rows_of(f"sarathi_osdi_figure-2_{part}.csv"):
            n, ms = int(row["batch_num_tokens"]), 1e3 * float(row["batch_execution_time"])
            shape: tuple[int, int, list[tuple[int, int]]] = (0, 0, [(n, 0)]) if part == "prefill" else (n, 1024 * n, [])
            ours = [1e3 * step_parts(one, *shape).total_s for one in (yi(0.8, 0.001), artifact())]
            print(f"  {n:6} {ms:8.0f} {ours[0]:8.0f} {ours[1]:8.0f}")
    print("figure 9: prompt, chunk, measured over uncut, catalogue, artifact's speed")
    for row in rows_of("sarathi_osdi_figure-9_chunking-overhead.csv"):
        prompt, chunk = int(row["prefill_length"]), int(row["chunk_size"])
        if chunk >= prompt:
            continue
        ours = [
            in_chunks_s(one, prompt, chunk) / in_chunks_s(one, prompt, prompt) for one in (yi(0.8, 0.001), artifact())
        ]
        print(
            f"  {prompt:6} {chunk:6} {float(row['prefill_execution_time_relative']):6.2f} {ours[0]:6.2f} {ours[1]:6.2f}"
        )
    one = yi(0.8, 0.001)
    print(
        f"a chunk of 257 over one of 256: published +32 %, ours {over(in_chunks_s(one, 257, 257), in_chunks_s(one, 256, 256))}"
    )


def in_chunks_s(one: Deployment, prompt: int, chunk: int) -> float:
    return sum(step_parts(one, 0, 0, [(min(chunk, prompt - done), done)]).total_s for done in range(0, prompt, chunk))


METHODS: dict[str, tuple[Callable[[], Policy], float, float]] = {
    "hybrid batching only": (lambda: Sarathi(16384), 0.53, 0.68),
    "chunked prefill only": (lambda: Alternating(512), 1.04, 0.17),
    "both": (lambda: Sarathi(512), 0.76, 0.14),
}


def ablated(policy: Policy, one: Deployment, rate_per_s: float, seed: int) -> tuple[float, float]:
    """(median TTFT, p99 of the gaps) in seconds of 128 requests."""
    random, lengths = Random(seed), sharegpt()
    engine = Engine(
        policy,
        CountedKv(kv_capacity_tokens(one, 0.9, 2e9) // 16),
        TickedCost(AnalyticCost(one)),
        Limits(max_num_seqs=128),
        tokens=True,
    )
    for request in poisson(rate_per_s, [random.choice(lengths) for _ in range(128)], seed):
        engine.submit(request.arrival_ns, request)
    last: dict[str, int] = {}
    gaps, firsts = [], []
    for event in engine.advance(10**15):
        if isinstance(event, Tokens):
            gaps += [event.at_ns - last[one] for one in (*event.first, *event.more) if one in last]
            last |= dict.fromkeys((*event.first, *event.more), event.at_ns)
        elif isinstance(event, Finished):
            firsts.append(ttft_s(event.truth))
    return median(firsts), sorted(gaps)[int(0.99 * len(gaps))] / 1e9


def ablation() -> None:
    """Sarathi-Serve, table 4: Yi-34B on two A100, 128 requests of ShareGPT; its rate isn't given."""
    for rate in (0.4, 0.6, 0.8):
        print(f"{rate} req/s: median TTFT, p99 TBT: published | ours, mean of 4 runs")
        for name, (make, ttft, tbt) in METHODS.items():
            found = [ablated(make(), artifact(), rate, seed) for seed in range(4)]
            print(
                f"  {name:22} {ttft:5.2f} {tbt:5.2f} | {fmean(a for a, _ in found):5.2f} {fmean(b for _, b in found):5.2f}"
            )


class WholePrompts(Plain):
    """Orca's iteration-level batches on paged memory, as Sarathi-Serve's artifact has it for its comparison."""

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes, prompts = state.kv, state.decodes, []
        while decodes.blocks_due() > kv.free:
            state.preempt(next(reversed(state.running)))
        while state.waiting and state.seats < state.limits.max_num_seqs and not state.preempted_now:
            head = state.waiting[0]
            if kv.needed(head, head.target) > kv.free - decodes.blocks_due() - kv.total // 100:
                break
            prompts.append((state.admit(head.target), head.target))
        return prompts, True


def carried(policy: Policy, one: Deployment, rate_per_s: float, many: int) -> tuple[float, float]:
    """(median seconds of waiting, p99 of the gaps) of so many requests of ShareGPT."""
    random, lengths, log = Random(1), sharegpt(), SegmentLog()
    limits = Limits(max_num_seqs=128, max_num_batched_tokens=16384)
    kv = CountedKv(kv_capacity_tokens(one, 0.9, 2e9) // 16)
    engine = Engine(policy, kv, TickedCost(AnalyticCost(one)), limits, log=log)
    for request in poisson(rate_per_s, [random.choice(lengths) for _ in range(many)], 1):
        engine.submit(request.arrival_ns, request)
    truths = [event.truth for event in engine.advance(10**16) if isinstance(event, Finished)]
    gaps, weights = log.pooled_gaps([truth.spans for truth in truths])
    order = np.argsort(gaps)
    below = np.cumsum(weights[order])
    p99 = float(gaps[order][np.searchsorted(below, 0.99 * below[-1])])
    return median((one.prefill_start_ns - one.arrival_ns) / 1e9 for one in truths), p99


def capacity() -> None:
    """Sarathi-Serve: the highest rate of ShareGPT with a median wait of 2 s and p99 between tokens within the limit; 2,048 requests."""
    for model, tp, limit_s, chunk in (
        ("mistral-7b", 1, 0.5, 2048), ("mistral-7b", 1, 0.1, 512), ("yi-34b-200k", 2, 1.0, 2048), ("yi-34b-200k", 2, 0.2, 512),
    ):  # fmt: skip
        one = msgspec.structs.replace(artifact(), model=model_shape(model), tensor_parallel=tp)
        found = {}
        for name, make in (("orca", WholePrompts), ("vllm", VllmV0), ("sarathi", partial(Sarathi, chunk))):

            def good(rate: float, make: Callable[[], Policy] = make) -> bool:
                wait_s, gap_s = carried(make(), one, rate, 2048)  # noqa: B023
                return wait_s <= 2 and gap_s <= limit_s  # noqa: B023

            found[name] = highest(good, 0.05, 30.0)
        rates = ", ".join(f"{name} {rate:.2f}" for name, rate in found.items())
        times = [found["sarathi"] / found[other] for other in ("vllm", "orca")]
        print(f"  {model:12} {limit_s} s: {rates} req/s; {times[0]:.1f} x vllm, {times[1]:.1f} x orca")


SPLITWISE = {"a100-80gb": "A100-80G", "h100-80gb": "H100"}


def steps() -> None:
    """Step times of others: Splitwise's engine of 2023, Vidur's kernels and all-reduces."""
    times: dict[tuple[str, str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows_of("splitwise_perf_model.csv"):
        if row["model"] == "llama2-70b" and row["hardware"] in SPLITWISE:
            key = row["hardware"], row["tensor_parallel"], int(row["prompt_size"]), int(row["batch_size"])
            times[key].append((float(row["prompt_time"]), float(row["token_time"])))
    print("Splitwise, Llama2-70B: prompt of 512 and batch; prompt ms measured, ours; token ms measured, ours, between")
    for (hardware, tp, prompt, batch), found in sorted(times.items()):
        if (prompt, batch) not in {(512, 1), (512, 16), (2048, 1)}:
            continue
        one = Deployment(
            model=model_shape("llama-2-70b"), hardware=accelerator(SPLITWISE[hardware]), tensor_parallel=int(tp)
        )
        first = 1e3 * step_parts(one, 0, 0, [(prompt, 0)] * batch).total_s
        token = 1e3 * step_parts(one, batch, batch * (prompt + 64)).total_s
        theirs = median(a for a, _ in found), median(b for _, b in found)
        print(
            f"  {hardware} TP{tp} {prompt:5} x {batch:2}   {theirs[0]:7.1f} {first:7.1f} {over(first, theirs[0]):>9}"
            f"   {theirs[1]:6.1f} {token:6.1f} {theirs[1] - token:6.1f}"
        )
    vidur()


def vidur() -> None:
    layers: dict[tuple[str, str, int, int], float] = {}
    columns = ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms")
    for row in rows_of("vidur_mlp_medians.csv"):
        name = row["model"].lower().removeprefix("meta-").removesuffix("-hf")
        key = row["gpu"], name, int(row["num_tensor_parallel_workers"]), int(row["num_tokens"])
        total = sum(float(row[column]) for column in columns)
        layers[key] = min(total, layers.get(key, total))
    print("Vidur, matrices of one layer: ours over measured, by tokens")
    for gpu, hardware in (("a100", "A100-80G"), ("h100", "H100")):
        for name in ("llama-2-7b", "llama-2-70b", "llama-3-8b", "llama-3-70b"):
            for tp in (1, 4):
                cells = []
                for tokens in (1, 64, 128, 256, 512, 1024, 4096):
                    theirs = layers.get((gpu, name, tp, tokens))
                    if theirs is None:
                        continue
                    ours = layer_ms(name.replace("llama-3-", "llama-3.1-"), hardware, tp, tokens)
                    cells.append(f"{tokens}: {ours / theirs:.2f}")
                if cells:
                    print(f"  {gpu} {name:12} TP{tp}   " + "  ".join(cells))
    print("Vidur, all-reduce of 32 KiB and 64 MiB: ours over measured")
    sizes: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row in rows_of("vidur_allreduce_medians.csv"):
        if row["num_workers"] == row["devices_per_node"] or row["node"].endswith("dgx"):
            sizes[row["node"], int(row["num_workers"])][int(row["size_bytes"])] = float(row["median_ms"])
    for node, hardware in (("a100_dgx", "A100-80G"), ("h100_dgx", "H100")):
        for tp in (2, 4, 8):
            found = sizes.get((node, tp), {})
            cells = []
            for wanted in (32 << 10, 1 << 20, 16 << 20, 64 << 20):
                if not found:
                    continue
                size = min(found, key=lambda one, wanted=wanted: abs(one - wanted))  # type: ignore[misc]
                ours = 1e3 * accelerator(hardware).allreduce[str(tp)].transfer_s(size)
                cells.append(f"{size / 1e6:.2f} MB: {ours / found[size]:.2f}")
            print(f"  {node} TP{tp}   " + "  ".join(cells))


def layer_ms(model: str, hardware: str, tp: int, tokens: int) -> float:
    """The matrices of one layer alone, without the head."""
    shape = msgspec.structs.replace(model_shape(model), vocabulary=1)
    one = Deployment(model=shape, hardware=accelerator(hardware), tensor_parallel=tp)
    parts = step_parts(one, tokens, 0)
    return 1e3 * (parts.compute_s + parts.memory_bandwidth_s) / shape.layers


SECTIONS = {
    "kernels": kernels, "runs": runs, "memory": memory, "shares": shares, "split": split, "apart": apart, "chunks": chunks,
    "ablation": ablation, "capacity": capacity, "steps": steps,
}  # fmt: skip

if __name__ == "__main__":
    if not DATA.is_dir():
        sys.exit(f"the data of others is not here: {DATA}")
    for section in sys.argv[1:] or SECTIONS:
        print(f"== {section}: {SECTIONS[section].__doc__}")
        SECTIONS[section]()
        print(flush=True)
