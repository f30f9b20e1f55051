"""The emulator's /metrics page: vLLM's names, meanings and buckets.

Lives here: counters and histograms and their text. Must not live here: when something happens (emulator.py tells).
Names, buckets and meanings: vLLM `vllm/v1/metrics/{stats,loggers,buckets}.py`, as of 0.33.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

REQUEST = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

HISTOGRAMS: dict[str, tuple[tuple[float, ...], str]] = {
    "time_to_first_token_seconds": (FIRST_TOKEN, "Histogram of time to first token in seconds."),
    "e2e_request_latency_seconds": (REQUEST, "Histogram of e2e request latency in seconds."),
    "request_queue_time_seconds": (REQUEST, "Histogram of time spent in WAITING phase for request."),
    "request_prefill_time_seconds": (REQUEST, "Histogram of time spent in PREFILL phase for request."),
    "request_decode_time_seconds": (REQUEST, "Histogram of time spent in DECODE phase for request."),
    "request_inference_time_seconds": (REQUEST, "Histogram of time spent in RUNNING phase for request."),
    "inter_token_latency_seconds": (TOKEN, "Histogram of inter-token latency in seconds."),
    "request_time_per_output_token_seconds": (TOKEN, "Histogram of time_per_output_token_seconds per request."),
    "request_prompt_tokens": (LENGTHS, "Number of prefill tokens processed."),
    "request_generation_tokens": (LENGTHS, "Number of generation tokens processed."),
    "request_num_preemptions": (PREEMPTIONS, "Histogram of the number of preemptions per request."),
    "iteration_tokens_total": (STEP_TOKENS, "Histogram of number of tokens per engine_step."),
}
COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
}
GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}


KV_MOVED = "nixl_xfer_time_seconds"  # only where prefill and decode are apart
KV_MOVED_TEXT = "Histogram of transfer duration for NIXL KV cache transfers."
TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)


class Histogram:
    """Counts in buckets that are closed above, as Prometheus has them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """What vLLM observes of a request when it finishes. Seconds and tokens."""

    e2e_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    output_tokens: int
    reason: str
    preemptions: int = 0


class Metrics:
    """All series of one engine."""

    def __init__(self, model: str, started_s: float) -> None:
        self.labels = f'engine="0",model_name="{model}"'
        self.started_s = started_s
        self.histograms = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.gauges: dict[str, float] = dict.fromkeys(GAUGES, 0)
        self.success: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}

    def observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)

    def kv_moved(self, seconds: float) -> None:
        """A request's KV went from a prefill to a decode engine, waiting for the link included."""
        self.histograms.setdefault(KV_MOVED, Histogram(TRANSFER)).observe(seconds)

    def finish(self, request: Finished) -> None:
        """vLLM observes everything but TTFT and ITL at the end; a time per output token of 0 stands for one token."""
        self.observe("e2e_request_latency_seconds", request.e2e_s)
        self.observe("request_queue_time_seconds", request.queue_s)
        self.observe("request_prefill_time_seconds", request.prefill_s)
        self.observe("request_decode_time_seconds", request.decode_s)
        self.observe("request_inference_time_seconds", request.prefill_s + request.decode_s)
        each_s = request.decode_s / (request.output_tokens - 1) if request.output_tokens > 1 else 0.0
        self.observe("request_time_per_output_token_seconds", each_s)
        self.observe("request_prompt_tokens", request.prompt_tokens)
        self.observe("request_generation_tokens", request.output_tokens)
        self.observe("request_num_preemptions", request.preemptions)
        self.success[request.reason] += 1

    def page(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        out = [
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self.started_s!r}",
        ]
        for name, text in GAUGES.items():
            out += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} gauge"]
            out.append(f"vllm:{name}{{{self.labels}}} {float(self.gauges[name])!r}")
        for name, text in COUNTERS.items():
            out += [f"# HELP vllm:{name}_total {text}", f"# TYPE vllm:{name}_total counter"]
            out.append(f"vllm:{name}_total{{{self.labels}}} {float(self.counters[name])!r}")
        out.append("# HELP vllm:request_success_total Count of successfully processed requests.")
        out.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.success.items():
            out.append(f'vllm:request_success_total{{{self.labels},finished_reason="{reason}"}} {float(count)!r}')
        for name, histogram in self.histograms.items():
            out += self._histogram(name, histogram)
        return ("\n".join(out) + "\n").encode()

    def _histogram(self, name: str, histogram: Histogram) -> list[str]:
        text = KV_MOVED_TEXT if name == KV_MOVED else HISTOGRAMS[name][1]
        out = [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} histogram"]
        below = 0
        for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            below += count
            le = "+Inf" if bound is None else repr(float(bound))
            out.append(f'vllm:{name}_bucket{{{self.labels},le="{le}"}} {float(below)!r}')
        out.append(f"vllm:{name}_count{{{self.labels}}} {float(below)!r}")
        out.append(f"vllm:{name}_sum{{{self.labels}}} {histogram.sum!r}")
        return out
