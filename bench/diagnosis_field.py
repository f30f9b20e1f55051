"""A second set of scenarios with a known cause, made after the rules: other models, machines, policies and mixtures.

    python bench/diagnosis_field.py [--seeds 3] [--first-seed 0] [--only FAMILY] [--verbose]

Where `diagnosis_scenarios.py` draws step times in plain numbers, here they come from the cost model of a real shape on a real
accelerator, so that a cause has the size that it has in the field: queues beside slow decodes, prefills that are chunked, memory that is
short because a model is large. Healthy ones stand near the thresholds. What lies over the rows is drawn smaller, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
from diagnosis_scenarios import (
    Lay,
    Scenario,
    Seen,
    all_at_once,
    buffered,
    busy_client,
    chunks,
    far,
    late_reader,
    poisson,
    score_all,
    slow_first,
    slow_link,
    span,
    thinking,
)


def served(
    model: str, hardware: str, inputs: Any, outputs: Any, arrivals: Any, requests: int = 140, **deployment: Any
) -> dict[str, Any]:
    workload = {
        "input_tokens": inputs, "output_tokens": outputs, "arrivals": arrivals, "requests": requests, "warmup": 4,
    }  # fmt: skip
    return {"workload": workload, "deployment": {"model": model, "hardware": hardware} | deployment}


def chat(rng: random.Random) -> tuple[Any, Any]:
    return {"lognormal": {"median": rng.randint(200, 600), "p95": rng.randint(1200, 2400)}}, span(rng, 120, 260)


def healthy(rng: random.Random) -> Iterator[Scenario]:
    inputs, outputs = chat(rng)
    for name, made, lay in (
        ("a 7B on L40S, half busy", served("qwen2.5-7b", "L40S", inputs, outputs, poisson(rng.uniform(0.8, 1.4))), ()),
        ("a 70B over four", served("llama-3.1-70b", "H100", inputs, outputs, poisson(rng.uniform(0.5, 1.5)), tensor_parallel=4), ()),
        ("Sarathi's chunks", served("mistral-7b", "A100-80G", inputs, outputs, poisson(rng.uniform(1, 2)), policy="sarathi"), ()),
        ("another continent", served("llama-3.1-8b", "H100", inputs, outputs, poisson(rng.uniform(1, 2))), (far(rng.uniform(60, 160)),)),
        ("mixture of experts", served("qwen3-30b-a3b", "H200", inputs, outputs, {"concurrency": 3}, 80), ()),
        ("two replicas", served("llama-3.1-8b", "A100-80G", inputs, outputs, poisson(2), replicas=2), ()),
    ):  # fmt: skip
        yield Scenario(name, None, made, lay)


def queueing(rng: random.Random) -> Iterator[Scenario]:
    inputs, outputs = span(rng, 150, 400), span(rng, 150, 250)
    also = frozenset({"decode_batch_growth", "prefill_decode_interference", "decode_compute"})
    pace = {"opt-13b": 0.02, "llama-3.1-8b": 0.008, "qwen2.5-32b": 0.026, "yi-34b": 0.043}
    for model, hardware, seats, policy in (
        ("opt-13b", "A100-80G", 8, "vllm_v0"),
        ("llama-3.1-8b", "H100", 6, "sarathi"),
        ("qwen2.5-32b", "H100", 10, "sglang"),
        ("yi-34b", "A100-80G", 5, "vllm_v1"),
    ):
        rate = seats / (200 * pace[model]) * rng.uniform(1.2, 1.8)
        made = served(model, hardware, inputs, outputs, poisson(rate), 180, max_num_seqs=seats, policy=policy)
        yield Scenario(
            f"{seats} seats for {model} under {policy}", "queueing", made, also=also, alone=policy == "sglang"
        )
    replicas = served("llama-3.1-8b", "H100", inputs, outputs, {"concurrency": 40}, 200, replicas=2, max_num_seqs=6)
    yield Scenario("two replicas, a crowd", "queueing", replicas, also=also)


def prefill(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"queueing", "prefill_decode_interference", "decode_batch_growth"})
    for model, hardware, long, rate, more in (
        ("mistral-7b", "RTX4090", 10_000, 0.12, {}),
        ("llama-3.1-70b", "H100", 16_000, 0.08, {"tensor_parallel": 4}),
        ("qwen2.5-7b", "L40S", 12_000, 0.15, {"policy": "sarathi"}),
        ("llama-3.1-8b", "A100-80G", 20_000, 0.1, {"policy": "sglang"}),
    ):
        inputs = {"uniform": [long // 3, long * rng.randint(11, 14) // 10]}
        made = served(model, hardware, inputs, span(rng, 12, 30), poisson(rate), 80, **more)
        yield Scenario(
            f"{long} tokens into {model}", "prefill_compute", made, also=also, alone="sarathi" in more.values()
        )


def interference(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"decode_batch_growth", "prefill_compute", "queueing"})
    for model, hardware, rate, more in (
        ("yi-34b-200k", "A100-80G", 0.7, {"tensor_parallel": 2, "policy": "vllm_v0"}),
        ("llama-3.1-8b", "L40S", 1.1, {"policy": "sglang"}),
        ("qwen2.5-7b", "A100-80G", 3.0, {"max_num_batched_tokens": 16384}),
    ):
        inputs = {"uniform": [2500, 5500]}
        made = served(model, hardware, inputs, span(rng, 150, 250), poisson(rate * rng.uniform(0.9, 1.1)), 140, **more)
        yield Scenario(f"long prompts into {model}'s answers", "prefill_decode_interference", made, also=also)


def memory(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"queueing", "decode_batch_growth", "prefill_decode_interference", "decode_compute"})
    inputs, outputs = span(rng, 200, 400), span(rng, 250, 450)
    for model, hardware, arrivals, more in (
        ("opt-13b", "A100-40G", poisson(rng.uniform(3.0, 4.0)), {"policy": "vllm_v0"}),
        ("llama-2-13b", "A100-40G", {"concurrency": 48}, {}),
        ("qwen2.5-7b", "RTX4090", poisson(rng.uniform(4, 6)), {"kv_tokens": 16 * 700, "policy": "sglang"}),
    ):
        made = served(model, hardware, inputs, outputs, arrivals, 200, **more)
        yield Scenario(f"{model} leaves {hardware} little room", "kv_exhaustion", made, also=also)


def growth(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"prefill_decode_interference"})
    for model, hardware, rate, outputs in (
        ("opt-6.7b", "A100-80G", 6.0, span(rng, 300, 500)),
        ("llama-2-7b", "L40S", 3.0, span(rng, 300, 500)),
        ("opt-13b", "A100-80G", 1.6, span(rng, 400, 600)),
    ):
        made = served(model, hardware, span(rng, 150, 350), outputs, poisson(rate * rng.uniform(0.9, 1.1)), 220)
        yield Scenario(f"{model}'s steps grow with the batch", "decode_batch_growth", made, also=also, alone=True)


def cache(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"prefill_compute", "warm_up", "prefill_decode_interference"})
    for model, hardware, tokens, groups, policy in (
        ("llama-3.1-8b", "L40S", 6000, 4, "sglang"),
        ("qwen2.5-7b", "A100-80G", 8000, 10, "vllm_v1"),
        ("llama-3.1-70b", "H100", 4000, 20, "vllm_v1"),
    ):
        more = {"tensor_parallel": 4} if "70b" in model else {}
        made = served(
            model, hardware, {"uniform": [tokens + 40, tokens + 300]}, span(rng, 15, 40), poisson(0.4), 120, policy=policy,
            prefix_cache=True, **more,
        )  # fmt: skip
        made["workload"]["shared_prefix"] = {"tokens": tokens, "groups": groups}
        yield Scenario(f"{groups} prefixes of {tokens} on {model}", "prefix_cache", made, also=also)


def quiet(rng: random.Random, model: str = "llama-3.1-8b", hardware: str = "A100-80G") -> dict[str, Any]:
    return served(model, hardware, span(rng, 150, 400), span(rng, 60, 120), poisson(rng.uniform(0.8, 1.6)), 100)


def network(rng: random.Random) -> Iterator[Scenario]:
    for name, lay in (
        ("a satellite", far(rng.uniform(550, 900))),
        ("a phone's link", slow_link(rng.uniform(25, 60))),
        ("a proxy that flushes twice a second", buffered(rng.uniform(350, 600))),
        ("a proxy that keeps it all", all_at_once),
    ):
        yield Scenario(
            name, "network_or_buffering", quiet(rng, "qwen2.5-7b", "L40S"), (lay,), alone=name == "a phone's link"
        )


def movement(rng: random.Random) -> Iterator[Scenario]:
    for model, hardware, tensor, speed in (
        ("llama-2-13b", "A100-80G", 1, 1.6),
        ("yi-34b-200k", "A100-80G", 2, 0.4),
        ("opt-13b", "H100", 1, 2.0),
    ):
        pool = {"tensor_parallel": tensor}
        split = {"prefill": pool, "decode": pool, "link": {"bytes_per_s": f"{speed * rng.uniform(0.8, 1.1):.3f} GB"}}
        made = served(model, hardware, span(rng, 900, 1200), span(rng, 25, 45), poisson(0.25), 80, split=split)
        also = frozenset({"prefill_compute", "decode_compute"})
        yield Scenario(f"{model}'s KV over {speed} GB/s", "kv_movement", made, also=also, kv_moves=True)


def decode(rng: random.Random) -> Iterator[Scenario]:
    for model, hardware, more in (
        ("llama-3.1-70b", "A100-80G", {"tensor_parallel": 2}),
        ("opt-66b", "A100-80G", {"tensor_parallel": 2}),
        ("yi-34b", "A100-80G", {}),
    ):
        arrivals = rng.choice([poisson(0.12), {"concurrency": 1}, {"concurrency": 2}])
        made = served(model, hardware, span(rng, 60, 200), span(rng, 60, 140), arrivals, 60, **more)
        yield Scenario(f"{model} on few", "decode_compute", made, alone=model == "yi-34b")


def policy(rng: random.Random) -> Iterator[Scenario]:
    also = frozenset({"queueing", "decode_batch_growth"})
    for model, hardware, seats, rate in (
        ("opt-13b", "A100-80G", 12, 1.2),
        ("llama-2-7b", "A100-80G", 24, 1.5),
        ("mistral-7b", "L40S", 16, 0.8),
    ):
        made = served(
            model, hardware, span(rng, 60, 200), {"uniform": [20, 400]}, poisson(rate * rng.uniform(0.9, 1.1)), 160,
            policy="request_level", max_model_len=1024, max_num_seqs=seats,
        )  # fmt: skip
        yield Scenario(f"{model} in whole batches", "scheduler_policy", made, also=also)


def client(rng: random.Random) -> Iterator[Scenario]:
    for name, lay in (
        ("one core for all", busy_client(rng.uniform(900, 1600))),
        ("a swamped client", busy_client(rng.uniform(3000, 8000))),
        ("a reader that pauses", late_reader(rng.uniform(60, 150))),
    ):
        yield Scenario(name, "client_saturation", quiet(rng), (lay,))


def counts_untold(seen: Seen, rng: random.Random) -> Seen:
    """No chunk says how many tokens it holds."""
    choices = tuple(msgspec.structs.replace(choice, tokens=None) for choice in seen.row.choices)
    return Seen(msgspec.structs.replace(seen.row, choices=choices), seen.told)


def several(rng: random.Random) -> Iterator[Scenario]:
    for tokens in (3, 5):
        made = quiet(rng, "qwen3-8b", "L40S")
        yield Scenario(f"drafts of {tokens - 1}", "multi_token_streaming", made, (chunks(tokens),), alone=tokens == 5)
        untold = (chunks(tokens + 1), counts_untold)
        yield Scenario(f"drafts of {tokens}, usage at the end", "multi_token_streaming", made, untold)


def reasoning(rng: random.Random) -> Iterator[Scenario]:
    for model, share in (("qwen3-32b", 0.6), ("qwen3-30b-a3b", 0.8)):
        made = served(model, "H200", span(rng, 100, 300), span(rng, 300, 600), poisson(0.5), 80)
        also = frozenset({"decode_compute", "decode_batch_growth"})
        yield Scenario(f"{model} thinks", "reasoning_time", made, (thinking(share),), also)


def cold(rng: random.Random) -> Iterator[Scenario]:
    for first, times in ((15, 8.0), (10, 15.0)):
        made = served("qwen2.5-7b", "L40S", span(rng, 300, 800), span(rng, 60, 120), poisson(0.7), 120)
        yield Scenario(f"cold for {first}", "warm_up", made, (slow_first(first, times),))


def mixed(rng: random.Random) -> Iterator[Scenario]:
    def pair(
        name: str, causes: tuple[str, ...], made: dict[str, Any], *lay: Lay, also: tuple[str, ...] = ()
    ) -> Scenario:
        return Scenario(name, causes[0], made, lay, frozenset(causes[1:] + also), mixed=True)

    inputs = span(rng, 150, 400)
    crowded = served("llama-3.1-8b", "L40S", inputs, span(rng, 100, 160), {"concurrency": 24}, 160, max_num_seqs=6)
    yield pair("queue and a far network", ("queueing", "network_or_buffering"), crowded, far(rng.uniform(600, 1200)))
    yield pair("queue and drafts", ("queueing", "multi_token_streaming"), crowded, chunks(4))
    yield pair(
        "queue and a late client", ("queueing", "client_saturation"), crowded, busy_client(rng.uniform(2000, 5000))
    )
    slow = served("yi-34b", "A100-80G", inputs, span(rng, 150, 250), poisson(0.15), 60)
    yield pair("slow decode that thinks", ("decode_compute", "reasoning_time"), slow, thinking(0.6))
    yield pair("slow decode, far away", ("decode_compute", "network_or_buffering"), slow, far(rng.uniform(2500, 4000)))
    long = served("llama-3.1-8b", "L40S", {"uniform": [6000, 14000]}, span(rng, 20, 40), poisson(0.2), 80)
    yield pair(
        "long prompts, buffered", ("prefill_compute", "network_or_buffering"), long, buffered(rng.uniform(400, 700)),
        also=("queueing", "prefill_decode_interference"),
    )  # fmt: skip
    tight = served("opt-13b", "A100-40G", inputs, span(rng, 300, 450), {"concurrency": 40}, 160)
    yield pair(
        "no room, and thinking", ("kv_exhaustion", "reasoning_time"), tight, thinking(0.5), also=("queueing", "decode_batch_growth"),
    )  # fmt: skip


FAMILIES = {
    "healthy": healthy, "queueing": queueing, "prefill_compute": prefill, "prefill_decode_interference": interference,
    "kv_exhaustion": memory, "decode_batch_growth": growth, "prefix_cache": cache, "network_or_buffering": network,
    "kv_movement": movement, "decode_compute": decode, "scheduler_policy": policy, "client_saturation": client,
    "multi_token_streaming": several, "reasoning_time": reasoning, "warm_up": cold, "mixtures": mixed,
}  # fmt: skip


def scenarios(seed: int) -> Iterator[Scenario]:
    """All of them, with the parameters that this seed draws."""
    for name, family in FAMILIES.items():
        yield from family(random.Random(f"field/{seed}/{name}"))


if __name__ == "__main__":
    score_all(scenarios)
