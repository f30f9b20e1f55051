"""The help page that is written from a signature, held against what cyclopts parses from the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from cyclopts import Group, Parameter

from phasemeter.cli.app import build_app, verb_of
from phasemeter.cli.help_page import PLACES, options_of, page
from phasemeter.cli.main import run
from phasemeter.cli.verbs import VERBS


def parsed_of(verb: str) -> dict[str, Any]:
    """cyclopts' own arguments, by the first name that a person types (or by the place's name)."""
    arguments = build_app(verb)[verb].assemble_argument_collection(parse_docstring=True)
    shown = [each for each in arguments if each.show]
    return {each.name.lstrip("-").replace("-", "_"): each for each in shown}


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_tells_every_option_that_is_parsed_and_no_other(verb: str) -> None:
    parsed = parsed_of(verb)
    ours = {option.names[0].lstrip("-").replace("-", "_").lower(): option for option in options_of(verb_of(verb))}
    assert {name.lower() for name in parsed} == set(ours)
    for name, argument in parsed.items():
        option = ours[name.lower()]
        if option.group != PLACES:
            assert set(option.names) == set(argument.names), name
            assert argument.parameter.group is None or option.group in {g.name for g in argument.parameter.group} | {
                "Options"
            }
        assert option.required == argument.required, name
        assert option.words == (argument.parameter.help or ""), name


def test_an_option_without_a_group_stands_before_those_with_one() -> None:
    def verb(
        place: str,
        *rest: int,
        plain: Annotated[list[str] | None, Parameter(help="many")] = None,
        kept: Annotated[Path, Parameter(alias="-k", group=Group("Late", sort_key=3), help="where")] = Path("here"),
        on: bool | None = None,
        both: bool = True,
    ) -> None:
        """Do it.

        And say
        so.

        Parameters
        ----------
        place
            where to
            look

        Examples:
          phasemeter verb a
        """

    assert page("verb", verb, 80) == "\n\n".join(
        [
            "Usage: phasemeter verb [OPTIONS] PLACE REST...",
            "Do it.",
            "And say so.",
            "Arguments:\n  PLACE  where to look [required]\n  REST",
            "Options:\n  --plain STR       many\n  --on --no-on\n  --both --no-both  [default: True]",
            "Late:\n  --kept -k PATH  where [default: here]",
            "Examples:\n    phasemeter verb a\n",
        ]
    )


@pytest.mark.parametrize("line", [["bench", "--help"], ["bench", "http://x", "--rate", "4", "-h"]])
def test_help_is_shown_wherever_it_is_asked_for(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 0
    assert capsys.readouterr().out.startswith("Usage: phasemeter bench [OPTIONS] URL\n")


@pytest.mark.parametrize("width", [60, 97, 120])
def test_nothing_is_wider_than_the_terminal_but_the_examples(width: int) -> None:
    for verb in VERBS:
        before, _, _ = page(verb, verb_of(verb), width).partition("\nExamples:\n")
        assert max(map(len, before.splitlines()[1:])) <= width


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_ends_in_examples_that_stand_in_one_column(verb: str) -> None:
    told = page(verb, verb_of(verb), 80)
    examples = told.partition("Examples:\n")[2].rstrip("\n").splitlines()
    assert examples and all(line.startswith("    phasemeter ") for line in examples), examples
    assert "--no-json" not in told
