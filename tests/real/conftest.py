"""A real vLLM on the CPU, started once for all of tests/real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.real import tiny_model

VLLM = Path(__file__).parents[2] / ".venv-vllm"
READY_WITHIN_S = 600


class RealServer(msgspec.Struct, frozen=True):
    """Where vLLM answers, the spans' port it was told, its Python (for its own bench) and the model folder."""

    url: str
    otlp_port: int
    python: Path
    model_folder: Path
    model: str = "tiny"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """vLLM with per-request metrics and spans on. Skips when its environment is not there (make test-real makes it)."""
    python = VLLM / "bin" / "python"
    if not (VLLM / ".installed").exists():
        pytest.skip("no vLLM here: make test-real sets it up")
    folder = tiny_model.write(tmp_path_factory.mktemp("model") / "tiny")
    port, otlp_port = free_port(), free_port()
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",  # one core computes, the rest is left to its API process and to us
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }  # fmt: skip
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "tiny",
        "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager",
        "--max-model-len", "4096", "--max-num-seqs", "16", "--enable-per-request-metrics",
        "--otlp-traces-endpoint", f"http://127.0.0.1:{otlp_port}/v1/traces",
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            await_ready(url, server, log)
            yield RealServer(url, otlp_port, python, folder)
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)  # its engine is a process of its own, and would outlive it


def await_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url + "/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"vLLM did not get ready:\n{log.read_text(errors='replace')[-4000:]}")
