"""The command line behind the door: words become a verb's call.

Lives here: the verbs as cyclopts takes them, a verb's help, a mistake in one line. Must not live here: exit codes (main.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cyclopts

from phasemeter import lazy
from phasemeter.cli.help_page import overview, page
from phasemeter.cli.verbs import COMPLETION, VERBS
from phasemeter.errors import UserError

ABOUT = "Measure, explain and plan the latency of LLM inference, by phase."
GLOBAL = {
    "COMMAND --help": "What a command does and takes, with examples",
    "--version": "Which build this is",
    "--install-completion": "Install completion for bash, zsh or fish",
}
# asked for elsewhere, and not here: what to do (docs/decisions/0023-one-machine-sends.md)
INSTEAD = {
    "--ray": "one machine sends a run (clocks of several don't compare): use its cores with --processes, or run bench on each machine"
    " at once with a share of the rate, its own --seed and -o, and read them with compare",
}


def build_app(wanted: str | None = None) -> cyclopts.App:
    """The command line with every verb; only the `wanted` one is loaded, so that its own words are its help."""
    app = cyclopts.App(
        name="phasemeter",
        help=ABOUT,
        version=lambda: lazy.load("phasemeter.cli.build").build(),
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` says it, and nothing is swallowed on the way
    )
    for name, (target, text) in VERBS.items():
        if name == wanted:
            app.command(verb_of(name), name=name)
        elif wanted not in VERBS:
            app.command(target, name=name, help=text)
    app.command(COMPLETION, name="--install-completion", help="Install completion for bash, zsh or fish.")
    return app


def answer(words: list[str]) -> Any:
    """What the verb returns.

    Raises UserError for words that make no command, and whatever the verb raises.
    """
    if words in ([], ["--help"], ["-h"]):
        rows = [(name, words) for name, (_, words) in VERBS.items()]
        print(overview(ABOUT, [*rows, *GLOBAL.items()]), end="")
        return 0
    if words[:1] and words[0] in VERBS and not {"--help", "-h"}.isdisjoint(words[1:]):
        print(page(words[0], verb_of(words[0])), end="")
        return 0
    refuse_empty(words)
    for option, instead in INSTEAD.items():
        if option in words:
            raise UserError(f"{option}: {instead}")
    try:
        return build_app(words[0] if words else None)(words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as mistake:
        raise UserError(" ".join(str(mistake).split())) from mistake


def refuse_empty(words: list[str]) -> None:
    """An empty word is a variable that was not set: it must not pass for a folder, a name or a number.

    Raises UserError; `--api-key ""` alone is meant (no header is sent).
    """
    for before, word in pairwise(["", *words]):
        option, unset = (
            (word[:-1], True) if word.startswith("--") and word.endswith("=") else (before, not word.strip())
        )
        if unset and option != "--api-key":
            name = option if option.startswith("-") else "an argument"
            raise UserError(f'{name} "": is empty: give it a value or leave it out')


def verb_of(name: str) -> Callable[..., object]:
    """The function behind a verb, loaded now."""
    module, _, function = VERBS[name][0].partition(":")
    found: Callable[..., object] = getattr(lazy.load(module), function)
    return found
