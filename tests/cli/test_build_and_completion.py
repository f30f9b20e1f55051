"""The build is told as far as it is known; completion scripts hold the verbs and their options."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

from phasemeter import __version__
from phasemeter.cli.build import build
from phasemeter.cli.completed import Api, Tool, Word
from phasemeter.cli.main import run
from phasemeter.cli.verbs import VERBS
from phasemeter.metrics.definitions import HOUSE
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.workload.urls import PATHS


def test_outside_a_checkout_the_version_stands_alone(tmp_path: Path) -> None:
    assert build(tmp_path) == __version__


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_in_a_checkout_the_commit_is_told_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        done = subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "pyproject.toml").write_text("one\n")
    git("add", "pyproject.toml")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "--short=9", "HEAD")
    assert build(tmp_path) == f"{__version__} ({commit})"
    (tmp_path / "pyproject.toml").write_text("two\n")
    assert build(tmp_path) == f"{__version__} ({commit}, changed)"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_holds_every_verb_and_its_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--install-completion", "--shell", shell, "--show"]) == 0
    script = capsys.readouterr().out
    assert [verb for verb in VERBS if verb not in script] == []
    assert "concurrency" in script and "timeout-first-byte" in script and "github" in script


def test_what_a_shell_offers_is_what_the_verbs_take() -> None:
    offered = {kind: set(get_args(get_args(kind)[0])) for kind in (Api, Tool, Word)}
    assert offered[Api] == set(PATHS)
    assert offered[Tool] == set(DIALECTS)
    assert offered[Word] == {*HOUSE, "goodput", "throughput"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a few files, and a program of that name to complete for."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "phasemeter").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "phasemeter").chmod(0o755)
    for name in ("contract.yaml", "trace.jsonl"):
        (tmp_path / name).touch()
    return tmp_path


# what is typed: what the last word becomes
TYPED = {
    "phasemeter diag": "diagnose",
    "phasemeter bench http://x --conc": "--concurrency",
    "phasemeter bench http://x --api openai.r": "openai.responses",
    "phasemeter bench http://x --trace tr": "trace.jsonl",
    "phasemeter check RUN --contract co": "contract.yaml",
    "phasemeter report --as guid": "guidellm",
    "phasemeter define ttft_": "ttft_from_due",
    "phasemeter trace tr": "trace.jsonl",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_verbs_options_values_and_files(work: Path) -> None:
    script = work / "bin" / "completion"
    assert run(["--install-completion", "--shell", "bash", "-o", str(script)]) == 0
    asked = """
source "$1"
function=$(complete -p phasemeter | sed -E 's/.*-F ([^ ]+).*/\\1/')
while read -r line; do
  COMP_WORDS=($line) COMP_LINE="$line" COMP_POINT=${#line}
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  "$function" phasemeter "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
  echo "${COMPREPLY[*]}"
done
"""
    done = subprocess.run(["bash", "-c", asked, "bash", script], input="\n".join(TYPED) + "\n",
                          capture_output=True, text=True, timeout=300, check=True, cwd=work)  # fmt: skip
    assert done.stdout.split() == list(TYPED.values()) and done.stderr == ""


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not here")
def test_fish_completes_verbs_options_values_and_files(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert run(["--install-completion", "--shell", "fish"]) == 0
    environment = {"HOME": str(work), "PATH": f"{work / 'bin'}:{os.environ['PATH']}", "TERM": "xterm"}
    for line, whole in TYPED.items():
        done = subprocess.run(["fish", "-c", f"complete -C {line!r}"], capture_output=True, text=True, timeout=300,
                              check=True, cwd=work, env=environment)  # fmt: skip
        assert [told.split("\t")[0] for told in done.stdout.splitlines()] == [whole]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not here")
@pytest.mark.parametrize("before", ["", "autoload -Uz compinit\ncompinit -u\n"])
def test_zsh_completes_whether_or_not_its_start_up_file_began_completion_before(
    work: Path, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.delenv("ZDOTDIR", raising=False)
    (work / ".zshrc").write_text("PS1='ready> '\n" + before)
    for _ in range(2):
        assert run(["--install-completion", "--shell", "zsh"]) == 0
    assert (work / ".zshrc").read_text().count("compdef _cyclopts_phasemeter phasemeter") == 1
    environment = {"HOME": str(work), "PATH": f"{work / 'bin'}:{os.environ['PATH']}", "TERM": "xterm", "LANG": "C"}
    with typed_at(["zsh", "-i"], work, environment) as (send, wait_for):
        wait_for("ready> ")
        for line, whole in TYPED.items():
            send(line)
            wait_for(line[-3:])  # with more to read a Tab is a Tab
            send("\t")
            wait_for(whole.removeprefix(line.rpartition(" ")[2]))
            send("\x15")


Send, WaitFor = Callable[[str], None], Callable[[str], None]


@contextmanager
def typed_at(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[tuple[Send, WaitFor]]:
    """A program on a terminal of its own: send it keys, wait for what it shows."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    shell = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment, start_new_session=True
    )
    os.close(its)

    def wait_for(words: str) -> None:
        shown, until = "", time.monotonic() + 120
        while words not in shown:
            ready, _, _ = select.select([ours], [], [], max(until - time.monotonic(), 0))
            assert ready, f"{words!r} never came: {shown[-300:]!r}"
            shown += re.sub(
                r"\x1b\[[0-9;?]*[A-Za-z]|[\x00\x07\r\x08]", "", os.read(ours, 65536).decode("utf-8", "replace")
            )

    try:
        yield (lambda keys: (os.write(ours, keys.encode()), None)[1]), wait_for
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_a_shell_that_is_not_served_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--install-completion", "--shell", "tcsh"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_color_is_respected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["--help"], ["bench", "--help"], ["define", "ttft"], ["doctor"]):
        run(words)
        assert "\x1b[3" not in capsys.readouterr().out, words
