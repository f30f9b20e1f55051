"""YAML as people write it: PyYAML's safe loader, but a key written twice is an error, not the last one's silent victory, and a
small number with an exponent is a number.

Lives here: these two rules. Must not live here: what any key means.
"""

from __future__ import annotations

import re
from typing import Any

import yaml


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
