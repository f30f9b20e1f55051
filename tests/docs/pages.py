"""What a reader would type: the commands, files and Python of README.md and docs/, read out of their fenced blocks.

A page is a session in one empty folder, from its first block to its last:
- ```console: a line `$ …` is a command (a `\\` carries it on), the lines below it are what it shows, `…` stands for lines left out;
  `$ echo $?` gives the exit code that the command before it must have (else it must be 0);
- a block with a title writes that file; ```python runs, with the names of the page's blocks before it;
- ```yaml: `run: phasemeter …` of a CI recipe is a command too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phasemeter.cli.verbs import VERBS

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*) ?(?:title=\"(?P<title>[^\"]+)\")?.*$")
RECIPE = re.compile(r"^\s*(?:- )?(?:run: )?(?P<command>phasemeter .+)$")
COMMAND_START = re.compile(rf"^\s*(?:\$ )?(?:\S*/)?phasemeter (?:{'|'.join(VERBS)}) ")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A fenced block: its language, its title (a file's name) if it has one, its lines, and where it starts."""

    language: str
    title: str | None
    lines: tuple[str, ...]
    number: int


class Command(msgspec.Struct, kw_only=True):
    """A command as typed, the output shown under it, the exit code that the page promises."""

    words: str
    number: int
    shown: tuple[str, ...] = ()
    exit_code: int = 0


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the page tells its reader to write."""

    name: str
    text: str


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Python to run."""

    text: str
    number: int


Step = Command | File | Script


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block, its indent (inside a list or a note) taken off."""
    opened: tuple[re.Match[str], int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None:
            if match := FENCE.match(line):
                opened, inside = (match, number), []
            continue
        match, start = opened
        if line.strip() == match["ticks"]:
            yield Block(language=match["language"], title=match["title"], lines=tuple(inside), number=start)
            opened = None
        else:
            inside.append(line.removeprefix(match["indent"]))


def steps(text: str) -> list[Step]:
    """What the page has its reader do, in order."""
    found: list[Step] = []
    for block in blocks(text):
        body = "\n".join(block.lines) + "\n"
        if block.title is not None:
            found.append(File(name=block.title, text=body))
        if block.language == "console":
            found += console(block)
        elif block.language == "python":
            found.append(Script(text=body, number=block.number))
        elif block.language == "yaml":
            recipes = ((at, RECIPE.match(line)) for at, line in enumerate(block.lines, start=block.number + 1))
            found += [Command(words=match["command"], number=at) for at, match in recipes if match]
    return found


def console(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    shown: list[str] = []
    carried_on = asked_code = False
    for number, line in enumerate(block.lines, start=block.number + 1):
        if carried_on:
            found[-1].words += " " + line.strip().removesuffix("\\").strip()
            carried_on = line.endswith("\\")
        elif line.startswith("$ "):
            words = line[2:].strip()
            asked_code = words == "echo $?"
            if not asked_code:
                carried_on = words.endswith("\\")
                found.append(Command(words=words.removesuffix("\\").strip(), number=number))
                shown = []
        elif asked_code:
            found[-1].exit_code = int(line)
        elif found:
            shown.append(line.rstrip())
            found[-1].shown = tuple(shown)
    return found


def hidden(text: str) -> list[str]:
    """Commands that stand where nothing would run them: in a block that is neither console nor a recipe, or without a `$`."""
    lost = []
    for block in blocks(text):
        for number, line in enumerate(block.lines, start=block.number + 1):
            typed = line.startswith("$ ") if block.language == "console" else False
            recipe = block.language == "yaml" and RECIPE.match(line)
            if COMMAND_START.match(line) and not typed and not recipe and not shown_by_us(block, line):
                lost.append(f"line {number}: {line.strip()}")
    return lost


def shown_by_us(block: Block, line: str) -> bool:
    """Output of a command may name commands ("look further"): those lines are indented."""
    return block.language == "console" and line.startswith("  ")


def differs(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that the output lacks, in order (a line `…` skips any number), or None."""
    left = [line.rstrip() for line in printed.splitlines()]
    at, may_skip = 0, False
    for line in shown:
        if line.strip() == "…":
            may_skip = True
            continue
        while may_skip and at < len(left) and left[at] != line:
            at += 1
        if at >= len(left) or left[at] != line:
            return line
        at, may_skip = at + 1, False
    return None
