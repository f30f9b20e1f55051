"""The door: quick help ending in examples, one line a mistake, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from phasemeter import __version__
from phasemeter.cli.app import build_app
from phasemeter.cli.main import run
from phasemeter.cli.verbs import VERBS
from phasemeter.contract.model import parse

HEAVY = {"numpy", "polars", "plotly", "httptools", "xllamacpp", "google.protobuf"}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verbs_help_ends_in_examples(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run([verb, "--help"]) == 0
    words = capsys.readouterr().out
    _, found, examples = words.partition("\nExamples:\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert found and lines and all(line.startswith("phasemeter ") for line in lines), words
    assert "--json" in words


@pytest.mark.parametrize("verb", VERBS)
def test_help_loads_nothing_heavy(verb: str) -> None:
    script = f"import sys\nfrom phasemeter.cli.main import run\nrun([{verb!r}, '--help'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert HEAVY & set(done.stderr.split()) == set()


def test_an_unknown_verb_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mesure"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1 and "mesure" in told.err


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_one_line_and_exit_2(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--no-such-option", "1"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1


@pytest.mark.parametrize("line", [["report", "a\nb"], ["trace", "a\nb"], ["contract", "new", "-o", "no\nwhere/x"]])
def test_a_name_with_a_line_end_makes_no_second_line(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(line) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("phasemeter: ") and "\\n" in told


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_ctrl_c_while_the_command_line_is_loading_is_one_line_and_130() -> None:
    script = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from phasemeter.cli.main import main
sys.argv = ["phasemeter", "--version"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "phasemeter: interrupted\n")


def test_the_door_is_open_before_anything_slow_is_loaded() -> None:
    script = "import sys\nimport phasemeter.cli.main\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert {"cyclopts", "inspect", "msgspec", "pathlib", "subprocess"}.isdisjoint(done.stdout.split())


WHOLE_NUMBERS = [
    (verb, argument)
    for verb in VERBS
    for argument in build_app(verb)[verb].assemble_argument_collection()
    if argument.parameter.parse is not False and int in {argument.hint, *get_args(argument.hint)}
]


@pytest.mark.parametrize(
    ("verb", "option"), [(verb, argument.name) for verb, argument in WHOLE_NUMBERS], ids=lambda word: str(word)
)
@pytest.mark.parametrize("text", ["1.5", "1e3", "", "0x10", "nan", "²", "none", "9" * 40])
def test_a_whole_number_is_never_rounded(verb: str, option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else the verb needs: the option is read first."""
    places = {"compare": ["a", "b"], "demo": [], "evidence": ["f"], "import": ["f"]}.get(verb, ["somewhere"])
    assert run([verb, *places, option, text]) == 2
    told = capsys.readouterr()
    assert (
        told.out == ""
        and len(told.err.splitlines()) == 1
        and option in told.err
        and ("number" in told.err or "empty" in told.err)
    )


@pytest.mark.parametrize(
    "line",
    [
        ["bench", ""], ["bench", "http://x", "--output", ""], ["bench", "http://x", "--rate="], ["trace", "f", "--columns", ""],
        ["report", "r", "--html", ""], ["compare", "", "b"],
    ],
)  # fmt: skip
def test_an_empty_word_is_a_variable_that_was_not_set(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1 and "is empty" in told.err


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "", "٣", "half", "-1"])
@pytest.mark.parametrize(
    ("verb", "option"), [("evidence", "--seconds"), ("bench", "--temperature"), ("bench", "--top-p")]
)
def test_a_number_is_finite_and_within_its_range(
    verb: str, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "http://127.0.0.1:1", option, text]) == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1 and option in told.err


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "new", "--output", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err == f"phasemeter: {tmp_path}: Is a directory\n"


def test_a_starter_takes_no_edited_contracts_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "c.yaml"
    mine.write_text("mine")
    assert run(["contract", "new", "--output", str(mine)]) == 2
    assert capsys.readouterr().err == f"phasemeter: {mine} exists already: give another -o/--output, or remove it\n"
    assert mine.read_text() == "mine"
    assert run(["contract", "schema", "--output", str(mine)]) == 0 and mine.read_text() != "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
@pytest.mark.parametrize("words", [["define"], ["define", "ttft", "--json"], ["--version"], ["bench", "--help"]])
def test_a_disk_that_takes_no_output_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "phasemeter", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (2, "phasemeter: what was being written: No space left on device\n")


def test_several_machines_are_refused_with_what_to_do_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "http://127.0.0.1:1", "--ray"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1 and "--processes" in told.err and "compare" in told.err


@pytest.mark.parametrize("option", [["--rate", "4/s"], ["--input-tokens", "9"], ["--insecure"], ["--no-sessions"]])
def test_a_simulated_search_takes_no_option_of_a_load_on_a_service(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["contract", "new", "--output", str(tmp_path / "c.yaml")]) == 0
    (tmp_path / "plan.yaml").write_text("workload: {}\n")
    line = ["goodput", "--simulate", str(tmp_path / "plan.yaml"), "--contract", str(tmp_path / "c.yaml"), *option]
    assert run(line) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(
        f"phasemeter: {option[0].replace('no-', '')}: a plan says its own workload"
    )


@pytest.mark.parametrize("line", [[], ["--help"], ["-h"]])
def test_the_first_page_has_a_line_for_each_verb(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {words}" in page for name, (_, words) in VERBS.items())


@pytest.mark.parametrize("kind", ["chat", "batch", "long-generation"])
def test_a_starter_in_json_is_the_same_contract(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["contract", "new", "--kind", kind]) == 0
    commented = capsys.readouterr().out
    assert run(["contract", "new", "--kind", kind, "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["workload"]["kind"] == kind and parse(told, "c.json") == parse(commented, "c.yaml")


def test_a_pages_file_and_where_it_starts_are_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["explore", "-o", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(page) and page.exists() and told["start"]["tpot"] == 25.0


def test_an_emulator_says_in_one_document_where_it_serves(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "workload: {input_tokens: 64, output_tokens: 8, arrivals: {poisson: 1/s}, requests: 10}\n"
        "deployment: {model: llama-3.1-8b, hardware: L40S}\n"
    )
    words = [sys.executable, "-m", "phasemeter", "emulate", str(plan), "--port", "0", "--model", "mine", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.terminate()
        rest, _ = process.communicate(timeout=300)
    assert told["models"] == ["mine"] and told["url"].startswith("http://127.0.0.1:") and told["url"].endswith("/v1")
    assert rest == "" and process.returncode == 0
