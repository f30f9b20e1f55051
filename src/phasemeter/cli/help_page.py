"""A verb's help page, written from its signature: what cyclopts would show, in a tenth of its time.

Lives here: options, their words and the page's layout. cyclopts parses from the same annotations; a test holds the one
against the other. Must not live here: what an option means.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter

WIDEST, NARROWEST = 120, 60
POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
PLACES = "Arguments"
HEADING = re.compile(r"^(\w[\w ]*)\n-+\n", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """One argument or option: `names` as typed (`RUN`, `--output`, `-o`), `kind` as shown behind them ("" for a flag)."""

    names: tuple[str, ...]
    kind: str
    words: str
    group: str
    rank: int  # the group's place on the page
    required: bool
    default: str | None
    choices: tuple[str, ...] = ()

    @property
    def left(self) -> str:
        return " ".join([*self.names, *([self.kind] if self.kind else [])])

    @property
    def right(self) -> str:
        notes = [f"[choices: {', '.join(self.choices)}]"] if self.choices else []
        notes += ["[required]"] if self.required else []
        notes += [f"[default: {self.default}]"] if self.default is not None else []
        return " ".join([self.words, *notes]).strip()


def page(name: str, verb: Callable[..., object], width: int | None = None) -> str:
    """The whole page: usage, what it does, arguments and options by group, examples."""
    columns = width or max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    told, _, examples = inspect.cleandoc(verb.__doc__ or "").partition("\nExamples:\n")
    told = HEADING.split(told)[0]
    parts = [usage(name, verb), *(_reflowed(part, columns) for part in told.split("\n\n") if part.strip())]
    options = list(options_of(verb))
    for _, group in sorted({(option.rank, option.group): None for option in options}):
        own = [option for option in options if option.group == group]
        left = max(len(option.left) for option in own)
        parts.append("\n".join([f"{group}:", *(_row(option, left, columns) for option in own)]))
    if examples:
        parts.append("Examples:\n" + textwrap.indent(textwrap.dedent(examples).rstrip(), "    "))
    return "\n\n".join(parts) + "\n"


def overview(about: str, verbs: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """The first page: what there is, a line each."""
    columns = width or max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    rows = list(verbs)
    left = max(len(name) for name, _ in rows)
    lines = [
        textwrap.fill(words, columns, initial_indent=f"  {name.ljust(left)}  ", subsequent_indent=" " * (left + 4))
        for name, words in rows
    ]
    return "\n".join(["Usage: phasemeter COMMAND", "", about, "", "Commands:", *lines, ""])


def usage(name: str, verb: Callable[..., object]) -> str:
    """`Usage: phasemeter bench [OPTIONS] URL`."""
    places = [own for own in inspect.signature(verb).parameters.values() if own.kind in POSITIONAL]
    shown = [
        own.name.strip("_").upper() + ("..." if own.kind is inspect.Parameter.VAR_POSITIONAL else "")
        if own.default is own.empty
        else f"[{own.name.strip('_').upper()}]"
        for own in places
    ]
    return " ".join(["Usage: phasemeter", name, "[OPTIONS]", *shown])


def _reflowed(paragraph: str, columns: int) -> str:
    return textwrap.fill(" ".join(paragraph.split()), columns, break_on_hyphens=False, break_long_words=False)


def _row(option: Option, left: int, columns: int) -> str:
    head = f"  {option.left.ljust(left)}  "
    lines = textwrap.fill(
        option.right, columns, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return lines or head.rstrip()


def options_of(verb: Callable[..., object]) -> Iterator[Option]:
    """Every argument and option that `verb` takes, those of a dataclass that stands for several (`name="*"`) included."""
    told, hints = _told_of(verb), get_type_hints(verb, include_extras=True)
    for own in inspect.signature(verb).parameters.values():
        type_, parameter = _annotated(hints[own.name])
        if "*" in (parameter.name or ()):
            yield from _fields_of(_members(type_)[0])
            continue
        default = MISSING if own.default is own.empty else own.default
        if own.kind is inspect.Parameter.VAR_POSITIONAL:
            default = ()
        yield _option(own.name, hints[own.name], default, words=told.get(own.name, ""), place=own.kind in POSITIONAL)


def _fields_of(options: type) -> Iterator[Option]:
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        yield _option(field.name, hints[field.name], field.default, words="", place=False)


def _option(name: str, hint: Any, default: Any, *, words: str, place: bool) -> Option:
    type_, parameter = _annotated(hint)
    group = parameter.group[0] if isinstance(parameter.group, tuple) and parameter.group else None
    names = tuple(parameter.name or ()) or (f"--{name.strip('_').replace('_', '-')}",)
    negatives = _negatives(type_, parameter, names)
    kind, choices = _kind(type_)
    shown = None if default is MISSING or default is None or default == () else str(default)
    return Option(
        names=(name.strip("_").upper(),) if place else (*names, *(parameter.alias or ()), *negatives),
        kind="" if place else kind,
        words=parameter.help or words,
        group=PLACES if place else group.name if isinstance(group, Group) else "Options",
        rank=-1 if place else 0 if not isinstance(group, Group) else int(str(group.sort_key or 0)),
        required=default is MISSING,
        default=None if shown == "False" else shown,
        choices=choices if parameter.show_choices is not False else (),
    )


def _annotated(hint: Any) -> tuple[Any, Parameter]:
    """(type, what its annotation says of it)."""
    if get_origin(hint) is not Annotated:
        return hint, Parameter()
    type_, *notes = get_args(hint)
    return type_, Parameter.combine(*(note for note in notes if isinstance(note, Parameter)))


def _members(type_: Any) -> list[Any]:
    """The types that a value may have, None apart."""
    several = get_origin(type_) in {Union, UnionType}
    return [each for each in get_args(type_) if each is not type(None)] if several else [type_]


def _kind(type_: Any) -> tuple[str, tuple[str, ...]]:
    """How a value is shown, and its choices."""
    member = _members(type_)[0]
    if get_origin(member) in {list, tuple}:
        return _kind(get_args(member)[0])
    if get_origin(member) is Literal:
        return "CHOICE", tuple(str(each) for each in get_args(member))
    return "" if member is bool else member.__name__.upper(), ()


def _negatives(type_: Any, parameter: Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """`--no-stream`, where a flag may be switched off and nothing else was said."""
    if parameter.negative is not None or bool not in _members(type_):
        return ()
    return tuple(name.replace("--", "--no-", 1) for name in names if name.startswith("--"))


def _told_of(verb: Callable[..., object]) -> dict[str, str]:
    """What a docstring's "Parameters" section says of each (numpydoc form)."""
    _, found, rest = inspect.cleandoc(verb.__doc__ or "").partition("Parameters\n----------\n")
    lines = rest.partition("\nExamples:\n")[0].splitlines() if found else []
    told: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.startswith(" "):
            told[name] = f"{told.get(name, '')} {line.strip()}".strip()
        elif line.strip():
            name = line.partition(":")[0].strip().lstrip("*")
    return told
