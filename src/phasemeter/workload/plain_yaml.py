"""YAML as people write it: PyYAML's safe loader, but a key written twice is an error, not the last one's silent victory, and a
small number with an exponent is a number.

Lives here: these two rules, and one line for whatever else is no YAML. Must not live here: what any key means.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from phasemeter.errors import FileError

SHOWN = 80  # characters of a file's own words in an error


class PlainLoader(yaml.SafeLoader):
    """Builds plain values only. Raises yaml.YAMLError for a key that stands twice in one mapping, or is no plain value."""


def _mapping(loader: PlainLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    entries: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise yaml.constructor.ConstructorError(None, None, "a key should be text", key_node.start_mark)
        if key in entries:
            raise yaml.constructor.ConstructorError(None, None, f"`{key}` stands here twice", key_node.start_mark)
        entries[key] = loader.construct_object(value_node, deep=True)
    return entries


PlainLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
# YAML 1.2 (10.3.2) wants no point in a number with an exponent, and programs write 2e-05. Whole ones (1e3) stay text, as YAML 1.1 has
# them: lengths and rates read text.
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE]-[0-9]+$"), list("-+0123456789")
)


def read_yaml(text: str, file: str) -> Any:
    """Plain values. Raises FileError, in one line with `file` and the place, for what is no YAML."""
    try:
        return yaml.load(text, Loader=PlainLoader)  # a SafeLoader: builds plain values only
    except yaml.MarkedYAMLError as mistake:
        mark = mistake.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise FileError(f"{file}: {where}no readable YAML: {_shown(str(mistake.problem))}") from mistake
    except yaml.YAMLError as mistake:
        raise FileError(f"{file}: no readable YAML: {' '.join(str(mistake).split())}") from mistake
    except RecursionError as mistake:
        raise FileError(
            f"{file}: no readable YAML: brackets in brackets, hundreds deep: a page of it has five"
        ) from mistake
    except ValueError as mistake:  # a number of thousands of digits, a day that no month has
        raise FileError(f"{file}: no readable YAML: {_shown(str(mistake))}") from mistake


def _shown(text: str) -> str:
    """On one short line that a terminal only shows: what a file holds may break lines or colour them."""
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"
