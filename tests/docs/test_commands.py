"""Every command of README.md and docs/ is run, or is on a list here with the reason why it can't be.

Each page is one session in one empty folder. Its servers become ours: an emulator, or the embedded engine where the page is
about it. Loads are made small, so that all of it takes less than a minute.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasemeter.cli.main import run
from phasemeter.cli.verbs import VERBS
from phasemeter.runs import demo as demo_module
from tests.docs.pages import PAGES, REPOSITORY, Command, File, Script, Step, blocks, differs, hidden, name_of, steps

# Programs that aren't ours: what starts a foreign server, or needs what a test has not.
FOREIGN = {
    "make": "the set-up itself; its targets are checked against the Makefile",
    "vllm": "needs a GPU and its own installation; tests/real measures a real one",
    "python3": "starts a foreign server or a tool of its own installation",
    "trtllm-serve": "needs a GPU and its own installation",
    "docker": "starts a foreign server from an image",
    "llama-server": "a build of llama.cpp of its own; the embedded engine is the same server",
    "ollama": "a server of its own installation",
    "aiperf": "another tool",
    "genai-perf": "another tool",
    "guidellm": "another tool",
    "export": "sets the reader's own key",
}
# Commands of ours that can't run in a test, word for word.
CANNOT_RUN = {
    "phasemeter demo --serve --port 8000": "serves until Ctrl-C; its pages run against the same engine, started by the test",
    "phasemeter --install-completion": "writes into the home folder; tests/cli/test_build_and_completion.py runs it with -o",
}
# Pages whose plain blocks a test of their own runs.
RUN_ELSEWHERE = {"docs/contract.md": "tests/test_docs_contract.py"}
ON_THE_ENGINE = {"docs/tour.md", "docs/measuring/llamacpp.md"}
DETERMINISTIC = {
    "simulate",
    "define",
    "contract",
    "trace",
    "evidence",
    "import",
    "plan",
}  # what they print is held to what is shown
PLAN = """
workload: {input_tokens: 64, output_tokens: {fixed: 16}, arrivals: {poisson: 4/s}}
deployment: {model: llama-3.1-8b, hardware: H100}
"""
SMALLER = {"--requests": 6, "--concurrency": 8, "--warmup": 2}
UNDER_A_CONTRACT = 40  # its rate is the contract's


def sessions() -> Iterator[tuple[Path, list[Step]]]:
    for page in PAGES:
        found = steps(page.read_text(encoding="utf-8"))
        if found:
            yield page, found


def commands() -> list[tuple[Path, Command]]:
    return [(page, step) for page, found in sessions() for step in found if isinstance(step, Command)]


def ours(command: Command) -> list[str] | None:
    """The words after `phasemeter`, or None for another program. A shell's prefix of the virtual environment is taken off."""
    words = shlex.split(re.sub(r"\s+(#|\|\|).*", "", command.words))  # a comment, or what the shell does on failure
    return words[1:] if words[0].rsplit("/", 1)[-1] == "phasemeter" else None


def test_there_are_commands_to_run() -> None:
    assert sum(ours(command) is not None for _, command in commands()) > 40


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_command_hides_from_the_extraction(page: Path) -> None:
    if other := RUN_ELSEWHERE.get(name_of(page)):
        assert Path(name_of(page)).name in (REPOSITORY / other).read_text(encoding="utf-8")
    else:
        assert hidden(page.read_text(encoding="utf-8")) == []


def test_each_other_program_has_a_reason_and_each_reason_a_command() -> None:
    programs = {shlex.split(command.words)[0] for _, command in commands() if ours(command) is None}
    assert programs - set(FOREIGN) == set()
    assert set(FOREIGN) - programs == set(), "no page names these any more"
    typed = {command.words for _, command in commands()}
    assert set(CANNOT_RUN) - typed == set(), "no page has these any more"


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    named = {
        shlex.split(command.words, comments=True)[1] for _, command in commands() if command.words.startswith("make ")
    }
    assert named and named <= targets


def test_each_verb_is_in_the_list_of_verbs_and_on_a_page_that_runs_it() -> None:
    listed = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [verb for verb, (_, words) in VERBS.items() if f"| `phasemeter {verb}` | {words} |" not in listed]
    assert missing == [], "docs/index.md lists each verb with its own words"
    fenced = [
        line.strip().removeprefix("$ ").replace(".venv/bin/", "")
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        for line in block.lines
    ]
    alone = [verb for verb in VERBS if not any(line.startswith(f"phasemeter {verb} ") for line in fenced)]
    assert alone == [], "each verb has a command on some page, which a test runs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_verb_and_flag_in_running_text_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for phrase in re.findall(r"`(?:\.venv/bin/)?phasemeter ([^`]+)`", text):
        verb, *rest = phrase.split()
        if verb.startswith("-") or verb == "VERB":
            continue
        assert verb in VERBS or verb.startswith("VERB"), phrase
        run([verb, "--help"])
        told = " ".join(capsys.readouterr().out.split())
        for flag in (word for word in rest if re.match(r"--?[a-z]", word)):
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", told), f"{phrase}: {flag}"


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(["plan.yaml"], tmp_path_factory.mktemp("emulator"), PLAN) as (url, _):
        yield url


class started:
    """`phasemeter emulate …` as a process of its own, until the block ends."""

    def __init__(self, words: list[str], folder: Path, plan: str | None = None) -> None:
        if plan is not None:
            (folder / words[0]).write_text(plan)
        command = [sys.executable, "-m", "phasemeter", "emulate", *words, "--port", "0"]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> tuple[str, subprocess.Popen[str]]:
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        url = re.search(r"http://[\d.:]+", said)
        assert url, said
        return url[0], self.process

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=90)


def smaller(words: list[str], url: str) -> list[str]:
    """The same command against our server, with a load that a test has time for."""
    asked = [re.sub(r"https?://[^/\s]+", url, word) if not word.startswith(":") else word for word in words]
    if "--model" in asked and asked[0] in ("bench", "goodput"):  # ours lists one, under its own name
        del asked[asked.index("--model") : asked.index("--model") + 2]
    for at, word in enumerate(asked[:-1]):
        value = asked[at + 1]
        if word in SMALLER and value.isdigit():
            most = UNDER_A_CONTRACT if "--contract" in words and word == "--requests" else SMALLER[word]
            asked[at + 1] = str(min(int(value), most))
        elif word == "--duration":
            asked[at + 1] = "1s"
        elif word == "--rate" and re.fullmatch(r"[\d.]+/s", value):
            asked[at + 1] = f"{4 * float(value[:-2]):g}/s"
    return asked


def without_port(words: list[str]) -> list[str]:
    at = words.index("--port") if "--port" in words else len(words)
    return words[:at] + words[at + 2 :]


@pytest.mark.parametrize(
    ("page", "found"), list(sessions()), ids=lambda value: name_of(value) if isinstance(value, Path) else ""
)
def test_a_page_does_what_it_says(
    page: Path,
    found: list[Step],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(demo_module, "SINGLE", ((16, 2), (48, 2)))
    monkeypatch.setattr(demo_module, "FEW_REQUESTS", 10)
    monkeypatch.setattr(demo_module, "LOADED_REQUESTS", 10)
    monkeypatch.setattr(demo_module, "LOADS", ((64, 8),))
    if name_of(page) in ON_THE_ENGINE:
        url = request.getfixturevalue("engine").url
    else:
        url = request.getfixturevalue("emulator")
    names: dict[str, object] = {"__name__": "__main__"}
    running: list[started] = []
    try:
        for step in found:
            if isinstance(step, File):
                Path(step.name).write_text(step.text, encoding="utf-8")
            elif isinstance(step, Script):
                source = re.sub(r"http://127\.0\.0\.1:\d+", url, step.text)
                exec(compile("\n" * step.number + source, name_of(page), "exec"), names)
            elif (words := ours(step)) is not None and step.words not in CANNOT_RUN:
                if words[0] == "emulate":
                    running.append(started(without_port(words[1:]), tmp_path))
                    url = running[-1].__enter__()[0]
                else:
                    typed(page, step, words, url, capsys)
    finally:
        for server in running:
            server.__exit__()


def typed(page: Path, step: Command, words: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one command; its exit code is the promised one (a busy machine may miss a contract, leave a verdict
    undecided or a run invalid, and the doctor says that it is busy);
    what can be repeated exactly prints what the page shows."""
    where = f"{name_of(page)}:{step.number}: {step.words}"
    to = words.index(">") if ">" in words else None
    capsys.readouterr()
    code = run(smaller(words[:to], url))
    told = capsys.readouterr()
    verdict = {0, 1, 3}
    bench = verdict if "--contract" in words else {0, 3}
    also = {"bench": bench, "check": verdict, "compare": {0, 3}, "doctor": {0, 1}}.get(words[0], set())
    promised = {step.exit_code} | (also if step.exit_code in also else set())
    assert code in promised, f"{where}\nexit code {code}\n{told.err}\n{told.out}"
    if to is not None:
        Path(words[to + 1]).write_text(told.out, encoding="utf-8")
    elif words[0] in DETERMINISTIC and "--for" not in words and (lost := differs(step.shown, told.out)) is not None:
        raise AssertionError(f"{where}\nno longer prints\n{lost}\nbut\n{told.out}")


def test_a_shown_line_that_is_not_printed_is_found() -> None:
    assert differs(("a", "…", "c"), "a\nb\nc\nd\n") is None
    assert differs(("a", "c"), "a\nb\nc\n") == "c"
    assert differs(("…", "x"), "a\n") == "x"


def test_a_command_in_a_plain_block_is_found() -> None:
    assert hidden("```sh\nphasemeter bench URL\n```\n") and hidden("```console\nphasemeter bench URL\n```\n")
    assert not hidden("```console\n$ phasemeter bench URL\n```\n")
