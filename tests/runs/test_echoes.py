"""A prompt that a server was asked to say again is none of its output, in whatever a run is read for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli.main import run
from phasemeter.runs.inspect import inspect
from tests.runs.served import Behaviour, Request, served, words_of
from tests.runs.whole import Bench

ASKED = ("--api", "openai.completions", "--body", "echo=true", "--requests", "2", "--warmup", "1")


def echoed(request: Request) -> list[str]:
    return [request.body["prompt"], *words_of(request)]


@pytest.mark.parametrize("together", [False, True])
def test_an_echoed_prompt_is_no_output_of_a_run(bench: Bench, together: bool) -> None:
    """vLLM puts the prompt before the first token's text; others send it in a chunk of its own."""

    def answer(request: Request) -> list[str]:
        prompt, first, *rest = echoed(request)
        return [prompt + first, *rest] if together else [prompt, first, *rest]

    with served(Behaviour(answer=answer)) as server:
        ran = bench(server.url, *ASKED)
        whole = bench(server.url, *ASKED, "--no-stream")
    for path in (ran.path, whole.path):
        for name in ("w0", "0", "1"):
            assert inspect(f"{path}#{name}").exchange.content == "".join(f" w{number}" for number in range(4))
    assert ran.result["metrics"]["inter_chunk"]["n"] == 2 * 3


def test_an_answer_that_does_not_begin_with_the_prompt_is_all_output(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, *ASKED)
    assert inspect(f"{ran.path}#0").exchange.content == " w0 w1 w2 w3"


def test_an_exported_exchange_keeps_what_was_echoed_with_its_text(bench: Bench, tmp_path: Path) -> None:
    with served(Behaviour(answer=echoed)) as server:
        ran = bench(server.url, *ASKED)
    bench.capsys.readouterr()
    assert run(["export-exchange", f"{ran.path}#0", "--with-text"]) == 0
    file = tmp_path / "one.json"
    file.write_text(bench.capsys.readouterr().out)
    assert json.loads(file.read_text())["request"]["echo"] is True
    assert inspect(str(file)).exchange.content == " w0 w1 w2 w3"
