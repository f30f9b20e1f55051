"""The field's schedulers, one readable screen each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phasemeter.serving.policies.distserve import DistserveDecode, DistservePrefill
from phasemeter.serving.policies.orca import Orca
from phasemeter.serving.policies.request_level import RequestLevel
from phasemeter.serving.policies.sarathi import Sarathi
from phasemeter.serving.policies.sglang import Sglang
from phasemeter.serving.policies.vllm_v0 import VllmV0
from phasemeter.serving.policies.vllm_v1 import VllmV1

POLICIES: Mapping[str, Callable[..., Any]] = {
    "request_level": RequestLevel,
    "orca": Orca,
    "vllm_v0": VllmV0,
    "vllm_v1": VllmV1,
    "sarathi": Sarathi,
    "sglang": Sglang,
    "distserve_prefill": DistservePrefill,
    "distserve_decode": DistserveDecode,
}
