"""Many slow streams at once: a small form of bench/slow_streams_bench.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phasemeter.io.load_options import LoadOptions
from phasemeter.io.target import target_of

from .test_load import closes, plan, raw, send

SERVER = Path(__file__).parents[2] / "bench" / "truth_server.py"


def test_three_hundred_slow_streams_are_open_together_and_none_loses_a_token(tmp_path: Path) -> None:
    told = [sys.executable, str(SERVER), "--log", str(tmp_path / "log"), "--ttft-ms", "2500", "--gap-ms", "150"]
    server = subprocess.Popen(told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        target = target_of(f"http://127.0.0.1:{int(server.stdout.readline())}/")
        options = LoadOptions(prewarm=16, expected_open=300)
        _, captures = send(tmp_path, target, plan(300, gap_ms=1, body=b'{"max_tokens": 4}'), options)
    finally:
        server.stdin.close()
        server.wait(60)
        server.stdout.close()
    assert closes(captures) == {"complete": 300}
    assert all(raw(c).count(b"data: {") == 4 for c in captures)
    last_sent = max(c.send_start_ns or 0 for c in captures)
    assert all(c.closed_ns is not None and c.closed_ns > last_sent for c in captures), "all were open at once"
