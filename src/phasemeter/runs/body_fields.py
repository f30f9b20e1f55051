"""`--body`: what a person adds to each request's body, read strictly.

Lives here: name=JSON as fields, and which of them would say again, and otherwise, what the run itself says. Must not live here:
the body itself (workload/bodies).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON, UserError

PROMPTS = "--prompts FILE, or --input-tokens for generated ones"
LENGTH = "--output-tokens"
# field: what says it; answers are read, and prompts counted, by what was asked
COMMON = {
    "stream": "--stream or --no-stream", "n": "--n", "ignore_eos": "--ignore-eos or --no-ignore-eos",
    "max_tokens": LENGTH, "max_completion_tokens": LENGTH,
}  # fmt: skip
OF_API = {
    "openai.chat": {"messages": PROMPTS},
    "openai.completions": {"prompt": PROMPTS},
    "openai.responses": {"input": PROMPTS, "max_output_tokens": LENGTH},
    "anthropic.messages": {"messages": PROMPTS},
    "ollama.chat": {"messages": PROMPTS, "options.num_predict": LENGTH},
    "ollama.generate": {"prompt": PROMPTS, "options.num_predict": LENGTH},
    "llamacpp.completion": {"prompt": PROMPTS, "n_predict": LENGTH},
    "tgi.generate_stream": {"inputs": PROMPTS, "parameters.max_new_tokens": LENGTH},
    "sglang.generate": {
        "text": PROMPTS, "input_ids": PROMPTS, "sampling_params.max_new_tokens": LENGTH, "sampling_params.n": "--n",
    },
}  # fmt: skip
MAY_BE_LEFT_OUT = {LENGTH}  # null: the server's own limit holds
MEANT_AS_JSON = re.compile(
    r"""[{\["].*|[+-]?[0-9.]+([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)|none|true|false|null""",
    re.DOTALL | re.IGNORECASE,
)


def extra_fields(given: Iterable[str], api: str) -> dict[str, Any]:
    """All of them as one object, later ones over earlier ones.

    Raises UserError for what is no JSON though it was meant to be, and for a field that the run says itself.
    """
    extra: dict[str, Any] = {}
    for each in given:
        extra = _over(extra, _field(each))
    for name, option in (COMMON | OF_API.get(api, {})).items():
        found, value = _at(extra, name)
        if found and not (value is None and option in MAY_BE_LEFT_OUT):
            raise UserError(f"--body {name}: answers are read by what was asked: say it with {option}")
    return extra


def _over(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, key by key; a null stays, for it takes a field of ours out of the body."""
    both = dict(base)
    for name, value in more.items():
        under = both.get(name)
        both[name] = _over(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return both


def _at(extra: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    name, _, rest = path.partition(".")
    if name not in extra:
        return False, None
    under = extra[name]
    return (True, under) if not rest else _at(under, rest) if isinstance(under, Mapping) else (False, None)


def _field(given: str) -> dict[str, Any]:
    name, equals, value = given.partition("=")
    whole = given.lstrip().startswith("{")
    if not whole and not (equals and name.strip()):
        raise UserError(f"--body {given}: write name=JSON or a JSON object")
    try:
        read = msgspec.json.decode(given if whole else value)
    except NOT_JSON as wrong:
        if whole or MEANT_AS_JSON.fullmatch(value.strip()):
            raise UserError(f'--body {given}: is no JSON ({wrong}): write name=JSON; words as name="words"') from wrong
        read = value  # name=some words: the words themselves
    return dict(read) if whole else {name.strip(): read}
