"""`phasemeter --install-completion`: verbs and options under the Tab key, for bash, zsh and fish.

Lives here: where the script goes. Must not live here: its text (cyclopts writes it from the verbs themselves).
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.errors import UserError

Shell = Literal["bash", "zsh", "fish"]


def install_completion(
    *,
    shell: Annotated[Shell | None, Parameter(help="default: the one that runs this")] = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="write the script there and change nothing else")] = None,
    show: Annotated[bool, Parameter(negative="", help="print the script and change nothing")] = False,
) -> int:
    """Install completion of verbs and options for the shell.

    The script goes to where the shell looks for it, and bash and zsh get a line in their start-up file.

    Examples:
        phasemeter --install-completion
        phasemeter --install-completion --shell zsh
        phasemeter --install-completion --shell bash --show > /etc/bash_completion.d/phasemeter
    """
    app = lazy.load("phasemeter.cli.app").build_app()
    known = shell or detected()
    called = ZSH_CALL if known == "zsh" else ""
    if show:
        print(app.generate_completion(shell=known) + called)
        return 0
    try:
        written = app.install_completion(shell=known, output=output, add_to_startup=output is None and known == "bash")
        if called:
            with written.open("a", encoding="utf-8") as script:
                script.write(called)
        if known == "zsh" and output is None:
            start_zsh(Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc", written)
    except OSError as refused:
        raise UserError(f"the completion script can't be written: {refused}") from refused
    print(f"completion for {known}: {written}; it works from the next shell on", file=sys.stderr)
    return 0


# Loaded by name the script is its own first call; sourced it says whose completion it is. The names inside it are cyclopts's.
ZSH_CALL = """
if (( ${+compstate} )); then
  _cyclopts_phasemeter "$@"
elif (( ${+functions[compdef]} )); then
  compdef _cyclopts_phasemeter phasemeter
fi
"""
ZSH_MARK = "# phasemeter: completion"


def start_zsh(rc: Path, script: Path) -> None:
    """Lines at the end of a `.zshrc` that hold whether or not compinit was called before them. Once."""
    before = rc.read_text(encoding="utf-8", errors="surrogateescape") if rc.is_file() else ""
    if ZSH_MARK in before:
        return
    lines = [
        ZSH_MARK,
        f"fpath=({shlex.quote(str(script.parent))} $fpath)",
        f"autoload -Uz {script.name}",
        "(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit -i }",
        f"compdef {script.name} phasemeter",
    ]
    with rc.open("a", encoding="utf-8") as file:
        file.write(("\n" if before and not before.endswith("\n") else "") + "\n".join(lines) + "\n")


def detected() -> Any:
    """The shell around us. Raises UserError where that can't be told."""
    finding = lazy.load("cyclopts.completion.detect")
    try:
        found = finding.detect_shell()
    except finding.ShellDetectionError as unknown:
        raise UserError("which shell this is can't be told: add --shell bash, zsh or fish") from unknown
    if found not in ("bash", "zsh", "fish"):
        raise UserError(f"{found} is not served: --shell takes bash, zsh or fish")
    return found
