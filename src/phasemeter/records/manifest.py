"""What two runs must share to be compared: asked, probed, or unrecorded; never guessed.

`None` prints as "unrecorded". `sources` says where each recorded field came from ("asked", "contract", "GET /version", ...).
"""

from __future__ import annotations

from typing import Any

import msgspec


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the first request. Free of secrets: no key, no Authorization, no user:password in a URL."""

    phasemeter: int = 1
    version: str = ""  # our own
    kind: str = "measured"  # measured | simulated | imported
    run_id: str = ""
    started_utc: str | None = None
    # the service
    url: str | None = None
    api: str | None = None
    model: str | None = None
    model_revision: str | None = None
    weights_hash: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    accelerator: str | None = None
    accelerator_count: int | None = None
    topology: str | None = None
    dtype: str | None = None
    quantisation: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    expert_parallel: int | None = None
    batching: str | None = None
    scheduling: str | None = None
    kv_policy: str | None = None
    prefix_cache: str | None = None
    attention_backend: str | None = None
    speculative_decoding: str | None = None
    # the workload
    input_tokens: Any = None  # the distribution as asked
    output_tokens: Any = None
    arrivals: Any = None
    rate_per_s: float | str | None = None  # "inf" as text
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    warmup: Any = None
    repetitions: int | None = None
    seed: int | None = None
    prompt_set_hash: str | None = None
    prompt_lengths: dict[str, Any] | None = (
        None  # how words were turned into tokens, as the probe fitted it: not compared
    )
    sampling: dict[str, Any] | None = None
    streaming: bool | None = None
    body: dict[str, Any] | None = None
    # how it was measured
    network_path: str | None = None
    proxy: str | None = None
    protocol: str | None = None
    measurement_point: str = "client socket"
    stamps: str | None = None  # kernel | user
    processes: int | None = None
    timeouts_s: dict[str, float | None] | None = None
    tokenizer: str | None = None
    definitions: str = "phasemeter/1"
    percentiles: str = "linear on n−1"
    client: dict[str, Any] | None = None  # machine, kernel, Python
    text: str | None = None  # None: kept; "dropping": to be overwritten when the run is over; "dropped"
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = msgspec.field(default_factory=dict)
