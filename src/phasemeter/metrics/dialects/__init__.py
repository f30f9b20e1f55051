"""Other tools' definitions as data, one small file a tool, and how to find one by name."""

from __future__ import annotations

from collections.abc import Mapping

from phasemeter.errors import UserError
from phasemeter.metrics.dialects import (
    aiperf,
    evalscope,
    genai_bench,
    genai_perf,
    guidellm,
    inference_perf,
    nim,
    sglang,
    vllm,
)
from phasemeter.metrics.dialects.model import Dialect

DIALECTS: Mapping[str, Dialect] = {
    module.DIALECT.name: module.DIALECT
    for module in (vllm, aiperf, genai_perf, nim, guidellm, sglang, inference_perf, evalscope, genai_bench)
}

EARLIER: Mapping[str, Dialect] = {vllm.OLDER.id: vllm.OLDER}


def written_by(definitions: str) -> Dialect | None:
    """The dialect that a result names as its definitions, the newest of that tool for an unknown version; None for no tool."""
    return EARLIER.get(definitions) or DIALECTS.get(definitions.partition("@")[0])


def dialect(name: str) -> Dialect:
    """The dialect of that name, with or without its version (`vllm`, `vllm@0.33`); without one it is the newest known.

    Raises UserError that lists the known ones.
    """
    wanted = name.strip().lower()
    if wanted in EARLIER:
        return EARLIER[wanted]
    bare, _, version = wanted.partition("@")
    found = DIALECTS.get(bare)
    if found is None or (version and version != found.version):
        known = ", ".join(known.id for known in (*DIALECTS.values(), *EARLIER.values()))
        raise UserError(f"`{name}` is no dialect I know: take one of {known}")
    return found
