"""The set-up itself: a real vLLM answers with the model of our own making."""

from __future__ import annotations

import json
import urllib.request

from tests.real.conftest import RealServer


def test_vllm_serves_the_tiny_model(vllm: RealServer) -> None:
    with urllib.request.urlopen(vllm.url + "/v1/models", timeout=10) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["tiny"]
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello there"}],
        "max_tokens": 5,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        vllm.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 5
