"""Files that nobody should write, and somebody will: each is one line, whatever verb reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.cli.main import run

DEEP = "[" * 50_000
FILES = {
    "list.json": DEEP + "]" * 50_000,
    "objects.json": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "rows.jsonl": '{"timestamp": 1, "input_length": 3, "output_length": 4, "x": ' + DEEP + "}\n",
    "stream.txt": "data: " + '{"a":' * 50_000 + "1" + "}" * 50_000 + "\n\n",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verb", ["evidence", "import", "trace", "inspect", "compare", "contract explain", "simulate"])
def test_brackets_in_brackets_are_one_line(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(FILES[name])
    places = [str(file)] * (2 if verb == "compare" else 1)
    assert run([*verb.split(), *places]) == 2
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 1 and name in told.err and "Traceback" not in told.err


@pytest.mark.parametrize(
    "head", [b"Content-Length: \xb2", b"Content-Length: " + b"9" * 5000, b"Process-Start-Time-Unix: \xb2"]
)
def test_a_saved_pages_head_that_is_no_number_says_nothing(
    head: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.http"
    file.write_bytes(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\nvllm:num_requests_running 1\n")
    assert run(["evidence", str(file), "--json"]) == 0
    assert '"vllm"' in capsys.readouterr().out
