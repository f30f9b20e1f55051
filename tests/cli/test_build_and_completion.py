"""The build is told as far as it is known; completion scripts hold the verbs and their options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from phasemeter import __version__
from phasemeter.cli.build import build
from phasemeter.cli.main import run
from phasemeter.cli.verbs import VERBS


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_takes_the_script_and_completes_a_verb(tmp_path: Path) -> None:
    script = tmp_path / "phasemeter"
    assert run(["--install-completion", "--shell", "bash", "-o", str(script)]) == 0
    asked = """
source "$1"
function=$(complete -p phasemeter | sed -E 's/.*-F ([^ ]+).*/\\1/')
COMP_WORDS=(phasemeter dia) COMP_CWORD=1 COMP_LINE="phasemeter dia" COMP_POINT=14
"$function" phasemeter dia phasemeter
echo "${COMPREPLY[*]}"
"""
    done = subprocess.run(["bash", "-c", asked, "bash", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["diagnose"] and done.stderr == ""


def test_a_shell_that_is_not_served_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--install-completion", "--shell", "tcsh"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_color_is_respected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["--help"], ["bench", "--help"], ["define", "ttft"], ["doctor"]):
        run(words)
        assert "\x1b[3" not in capsys.readouterr().out, words
