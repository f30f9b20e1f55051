"""The embedded engine answers, and is gone when its parent is gone, however that happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from phasemeter.errors import PhasemeterError, UserError
from phasemeter.io import embedded_engine as module
from phasemeter.io.embedded_engine import EmbeddedEngine

PARENT = """
import sys, time
from phasemeter.io.embedded_engine import embedded_engine
with embedded_engine() as engine:
    print(engine.pid, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # a zombie that nobody collects yet is gone
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.engine
def test_it_lists_its_model_on_a_loopback_port(engine: EmbeddedEngine) -> None:
    assert engine.url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(engine.url + "/v1/models", timeout=60) as answer:
        assert engine.model in answer.read().decode()


@pytest.mark.engine
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_when_its_parent_was_killed(engine: EmbeddedEngine, how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            assert alive(child)
            parent.send_signal(how)
            parent.wait(timeout=60)
        finally:
            parent.kill()
    assert gone_within(child, 60)


@pytest.mark.engine
def test_weights_that_do_not_load_are_one_line(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broken = tmp_path_factory.mktemp("weights") / "broken.gguf"
    broken.write_bytes(b"not weights")
    monkeypatch.setattr(module, "weights_path", lambda: broken)
    with pytest.raises(PhasemeterError, match="did not start") as told, module.embedded_engine():
        pass
    assert "\n" not in str(told.value)


def test_a_missing_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="make engine"):
        module.weights_path()


@pytest.mark.engine
def test_a_port_in_use_is_refused_and_not_shared(engine: EmbeddedEngine) -> None:
    port = int(engine.url.rsplit(":", 1)[1])
    with pytest.raises(UserError, match=str(port)), module.embedded_engine(port=port):
        pass
