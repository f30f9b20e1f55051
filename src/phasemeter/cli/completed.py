"""Types of options and arguments that say to a shell what may stand there; whatever is typed reaches the verb as `str`.

Lives here: unions whose first fitting member is text. Must not live here: a refusal (a verb says itself what it takes).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FileName = str | Path  # `Path` beside `str`: shells complete file names
Tool = (
    Literal["vllm", "aiperf", "genai-perf", "nim", "guidellm", "sglang", "inference-perf", "evalscope", "genai-bench"]
    | str
)
Api = (
    Literal[
        "openai.chat", "openai.completions", "openai.responses", "anthropic.messages", "ollama.chat", "ollama.generate",
        "llamacpp.completion", "tgi.generate_stream", "sglang.generate",
    ]
    | str
)  # fmt: skip
Word = (
    Literal[
        "ttft", "ttft_from_due", "ttfo", "e2e", "e2e_from_due", "stream_e2e", "generation", "tpot", "visible_tpot",
        "decode_per_token", "jitter", "client_queue", "connect", "upload", "dns", "tcp", "tls", "inter_chunk", "itl",
        "itl_spread", "stall", "goodput", "throughput",
    ]
    | str
)  # fmt: skip
