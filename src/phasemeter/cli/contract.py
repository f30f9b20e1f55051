"""`phasemeter contract`: a starter, its meaning in words, a JSON Schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from phasemeter.errors import UserError
from phasemeter.lazy import load


def contract(
    action: Literal["new", "explain", "schema"],
    file: Path | None = None,
    /,
    *,
    kind: Literal["chat", "batch", "long-generation"] = "chat",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Write a commented starter, say what a contract means, or print its JSON Schema.

    Parameters
    ----------
    action
        new, explain or schema.
    file
        For explain: the contract.
    kind
        For new: chat, batch or long-generation: which goal leads.
    output
        Write there instead of to the terminal.
    as_json
        One JSON document: the starter without its comments, the lines of an explanation, the schema.

    Examples:
        phasemeter contract new --kind chat > contract.yaml
        phasemeter contract explain contract.yaml
        phasemeter contract schema -o contract.schema.json
    """
    words = load("phasemeter.contract.words")
    if action == "new":
        text = words.starter(kind)
        if as_json:  # JSON is YAML: only the comments are lost
            text = json.dumps(load("phasemeter.workload.plain_yaml").read_yaml(text, "starter"), indent=2) + "\n"
    elif action == "schema":
        text = json.dumps(words.schema(), indent=2) + "\n"
    else:
        if file is None:
            raise UserError("contract explain needs the contract: phasemeter contract explain contract.yaml")
        lines = words.explain(read_contract(file))
        text = json.dumps({"lines": lines}, ensure_ascii=False) + "\n" if as_json else "\n".join(lines) + "\n"
        if output is None and not as_json:
            load("phasemeter.report.fold").show(lines)
            return 0
    if output is None:
        print(text, end="")
    else:
        _write(output, text, keeps=action == "new")
    return 0


def _write(output: Path, text: str, *, keeps: bool) -> None:
    """`keeps`: what is there may have been edited since. Raises UserError for that."""
    try:
        with output.open("x" if keeps and output.is_file() else "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as there:
        raise UserError(f"{output} exists already: give another -o/--output, or remove it") from there


def read_contract(file: Path):  # type: ignore[no-untyped-def]  # the record's module loads late
    """The contract in `file`. Raises UserError for a file that can't be read, FileError for what is wrong in it."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as trouble:
        raise UserError(f"{file}: {trouble.strerror}: name an existing contract") from trouble
    except UnicodeDecodeError as trouble:
        raise UserError(f"{file}: no UTF-8 text: name a YAML file") from trouble
    return load("phasemeter.contract.model").parse(text, file.name)
