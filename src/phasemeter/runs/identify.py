"""Who is there? What a server tells of itself on its own paths, read before a run.

Lives here: which path tells what, for each engine. Must not live here: a guess (what is not told stays unrecorded).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON
from phasemeter.io.fetch import fetch
from phasemeter.io.target import Limits, Target
from phasemeter.records.capture import Capture
from phasemeter.wire.http_body import HttpReader
from phasemeter.workload.urls import Endpoint

PATIENCE = Limits(connect_s=5.0, first_byte_s=5.0, idle_s=5.0, total_s=8.0)
BRIEF = Limits(connect_s=3.0, first_byte_s=3.0, idle_s=3.0, total_s=3.0)  # for a page that a run can do without
LARGEST_ANSWER_BYTES = 2_000_000


class Identity(msgspec.Struct, kw_only=True):
    """What was told, each manifest field with its source. `models`: names and aliases; None: no list was to be had."""

    models: tuple[str, ...] | None = None
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    silent: str | None = None  # the path that was asked and never answered
    context_tokens: int | None = None  # prompt and answer together; None where the list tells none, or several differ

    def tell(self, source: str, **fields: Any) -> None:
        """Take what `source` says; the first to tell a field is kept."""
        for name, value in fields.items():
            if value not in (None, "") and name not in self.fields:
                self.fields[name] = value
                self.sources[name] = source


def answer(capture: Capture) -> tuple[int | None, bytes]:
    """(status, body) of a whole answer; None and what came where there was none."""
    reader = HttpReader()
    body = b"".join([reader.feed(read.data) for read in capture.reads])
    return reader.status, body


class Asker:
    """Asks a server for its own pages. `first`: what the first one came to. A server that keeps silent is asked no more."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.silent: str | None = None  # the path that was not answered
        self.first: Capture | None = None
        self.first_status: int | None = None

    def page(self, path: str, limits: Limits = PATIENCE) -> bytes | None:
        """A page's body, or None."""
        if self.silent is not None:
            return None
        capture = fetch(msgspec.structs.replace(self._target, limits=limits), "GET", path)
        status, body = answer(capture)
        if self.first is None:
            self.first, self.first_status = capture, status
        self.silent = path if status is None else None
        return body if status == 200 and len(body) <= LARGEST_ANSWER_BYTES else None

    def json(self, path: str) -> Mapping[str, Any] | None:
        try:
            told = msgspec.json.decode(self.page(path) or b"")
        except NOT_JSON:
            return None
        return told if isinstance(told, dict) else None


def identify(asker: Asker, endpoint: Endpoint) -> Identity:
    """Ask for the model list, then what the engine that it names tells of itself. Silence is no error."""
    found = Identity()
    if endpoint.api.startswith("ollama"):
        _ollama(found, asker, endpoint)
        return found
    if endpoint.api == "tgi.generate_stream":
        _tgi(found, asker, endpoint)
        return found
    _model_list(found, asker, f"{endpoint.base}/models")
    engine = found.fields.get("engine") or NATIVE.get(endpoint.api)
    ask = ENGINES.get(engine or "", _version)
    ask(found, asker, endpoint)
    found.silent = asker.silent
    return found


def _model_list(found: Identity, asker: Asker, path: str) -> None:
    told = asker.json(path)
    listed = told.get("data") if told else None
    if not isinstance(listed, list):
        return
    names: list[str] = []
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        names.append(entry["id"])
        names.extend(alias for alias in entry.get("aliases") or () if isinstance(alias, str))
        owner = entry.get("owned_by")
        found.tell(f"GET {path}", engine=OWNERS.get(owner) if isinstance(owner, str) else None)
    found.models = tuple(dict.fromkeys(names))
    lengths = {entry.get("max_model_len") for entry in listed if isinstance(entry, dict)}
    (only,) = lengths if len(lengths) == 1 else (None,)
    found.context_tokens = only if isinstance(only, int) else None


NATIVE = {"llamacpp.completion": "llama.cpp", "sglang.generate": "sglang"}
OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "tensorrt_llm": "tensorrt-llm",
}


def _version(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    path = f"{endpoint.root}/version"
    told = asker.json(path)
    if told and isinstance(told.get("version"), str):
        found.tell(f"GET {path}", engine_version=told["version"])


def _llamacpp(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    path = f"{endpoint.root}/props"
    told = asker.json(path)
    if not told:
        return
    build = told.get("build_info")
    found.tell(f"GET {path}", engine="llama.cpp", engine_version=build if isinstance(build, str) else None)
    slots = told.get("total_slots")
    if isinstance(slots, int):
        found.tell(f"GET {path}", batching=f"{slots} slots, continuous")
    model_path = told.get("model_path")
    if isinstance(model_path, str):
        file = model_path.replace("\\", "/").rpartition("/")[2]
        kind = file.removesuffix(".gguf").rpartition(".")[2] if file.endswith(".gguf") else ""
        found.tell(f"GET {path}", quantisation=kind if kind[:1] in "QqFfBbIi" else None)


def _sglang(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    path = f"{endpoint.root}/get_server_info"
    told = asker.json(path)
    if not told:
        return
    found.tell(
        f"GET {path}",
        engine="sglang",
        engine_version=told.get("version"),
        model=told.get("served_model_name") or told.get("model_path"),
        dtype=told.get("dtype"),
        quantisation=told.get("quantization"),
        tensor_parallel=told.get("tp_size"),
        data_parallel=told.get("dp_size"),
        pipeline_parallel=told.get("pp_size"),
        scheduling=told.get("schedule_policy"),
        attention_backend=told.get("attention_backend"),
    )


def _vllm(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    _version(found, asker, endpoint)
    path = f"{endpoint.root}/metrics"
    line = CACHE_CONFIG.search((asker.page(path, BRIEF) or b"").decode("utf-8", "replace"))
    labels = dict(LABEL.findall(line[1])) if line else {}
    caching = {"True": "on", "False": "off"}.get(labels.get("enable_prefix_caching", ""))
    kept = [f"{name} {labels[name]}" for name in ("block_size", "cache_dtype", "num_gpu_blocks") if labels.get(name)]
    found.tell(f"GET {path}", prefix_cache=caching, kv_policy="paged: " + ", ".join(kept) if kept else None)


# vllm:cache_config_info is a gauge of 1 whose labels are the cache's settings (vllm/v1/metrics/loggers.py)
CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def _tgi(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    path = f"{endpoint.root}/info"
    told = asker.json(path)
    if told:
        found.tell(
            f"GET {path}",
            engine="tgi",
            engine_version=told.get("version"),
            model=told.get("model_id"),
            model_revision=told.get("model_sha"),
            dtype=told.get("model_dtype"),
        )


def _ollama(found: Identity, asker: Asker, endpoint: Endpoint) -> None:
    found.tell("--api", engine="ollama")
    told = asker.json(f"{endpoint.root}/api/version")
    if told:
        found.tell("GET /api/version", engine_version=told.get("version"))
    listed = (asker.json(f"{endpoint.root}/api/tags") or {}).get("models")
    if isinstance(listed, list):
        names = [entry["name"] for entry in listed if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        found.models = tuple(dict.fromkeys([*names, *(name.removesuffix(":latest") for name in names)]))


ENGINES: dict[str, Callable[[Identity, Asker, Endpoint], None]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
}
