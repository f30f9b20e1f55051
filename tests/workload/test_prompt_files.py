"""A person's prompts are read in every form they come in, and a form that is none is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.errors import FileError
from phasemeter.workload.prompt_files import read_prompts


def texts(text: str, name: str = "prompts.jsonl") -> list[str | None]:
    return [row.text for row in read_prompts(text, name)]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_lines_of_json_strings_are_the_strings(prompts: list[str]) -> None:
    assert texts("\n".join(json.dumps(prompt) for prompt in prompts)) == prompts


def test_a_line_that_only_begins_with_a_quotation_mark_is_text() -> None:
    lines = ['"Hello," she said.', '"a whole string"']
    assert texts("\n".join(lines), "prompts.txt") == lines


@pytest.mark.parametrize("key", ["prompt", "text", "text_input"])
def test_a_text_is_found_under_the_names_that_other_tools_give_it(key: str) -> None:
    assert texts(json.dumps({key: "hello"})) == ["hello"]


@pytest.mark.parametrize("row", ['{"prompt": ""}', '{"prompt": []}', '{"text_input": ""}'])
def test_an_empty_prompt_is_named_as_that(row: str) -> None:
    with pytest.raises(FileError, match=r"^prompts\.jsonl:2: its prompt is empty"):
        read_prompts('{"prompt": "a"}\n' + row, "prompts.jsonl")


@pytest.mark.parametrize("name", ["prompts.csv", "PROMPTS.TSV"])
def test_a_table_is_refused_instead_of_sending_its_header(name: str) -> None:
    with pytest.raises(FileError, match="a table is not read for prompts"):
        read_prompts("prompt,output_tokens\nhello,5\n", name)
