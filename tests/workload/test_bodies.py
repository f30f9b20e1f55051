"""Bodies: one name for each limit, extras merged, nothing sent that nobody asked for."""

from __future__ import annotations

import json

import pytest

from phasemeter.errors import UserError
from phasemeter.records.request import PlannedRequest
from phasemeter.workload.bodies import BodyOptions, Content, body, merged
from phasemeter.workload.urls import PATHS

LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "n_predict", "max_new_tokens"}
TEXT = Content(text="say it")


def planned(api: str, **more: object) -> PlannedRequest:
    return PlannedRequest(request_id="r0", index=0, api=api, output_tokens=7, **more)  # type: ignore[arg-type]


def names(value: object) -> list[str]:
    if isinstance(value, dict):
        return [name for key, inner in value.items() for name in (key, *names(inner))]
    return []


@pytest.mark.parametrize("api", sorted(PATHS))
def test_every_api_says_its_limit_once_and_carries_the_prompt(api: str) -> None:
    fields = body(planned(api), TEXT, BodyOptions(model="m", temperature=0.5, stop=("x",)))
    assert sum(name in LIMITS for name in names(fields)) == 1
    assert "say it" in json.dumps(fields)
    assert not any(value is None for value in fields.values())


def test_a_chat_limit_has_the_name_that_was_chosen_and_only_that() -> None:
    fields = body(planned("openai.chat"), TEXT, BodyOptions(max_tokens_field="max_completion_tokens"))
    assert fields["max_completion_tokens"] == 7
    assert "max_tokens" not in fields


def test_usage_is_asked_for_in_a_stream_and_only_there() -> None:
    assert body(planned("openai.chat"), TEXT, BodyOptions())["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(planned("openai.chat", stream=False), TEXT, BodyOptions())
    assert "stream_options" not in body(planned("openai.chat"), TEXT, BodyOptions(drop=("stream_options",)))


def test_sampling_fields_are_sent_only_when_asked_for() -> None:
    bare = body(planned("openai.completions"), TEXT, BodyOptions())
    assert set(bare) == {"prompt", "max_tokens", "stream", "stream_options"}
    full = body(
        planned("openai.completions", ignore_eos=True, n=2), TEXT, BodyOptions(seed=3, min_tokens=True, top_p=0.9)
    )
    assert (full["ignore_eos"], full["n"], full["seed"], full["min_tokens"], full["top_p"]) == (True, 2, 3, 7, 0.9)


def test_a_requests_own_fields_win_over_the_runs_and_objects_merge() -> None:
    options = BodyOptions(extra={"chat_template_kwargs": {"a": 1, "b": 1}, "temperature": 0.1}, temperature=0.9)
    fields = body(planned("openai.chat"), TEXT, options, {"chat_template_kwargs": {"b": 2}, "stream_options": None})
    assert fields["chat_template_kwargs"] == {"a": 1, "b": 2}
    assert fields["temperature"] == 0.1
    assert "stream_options" not in fields


def test_merging_changes_neither_side() -> None:
    base, extra = {"a": {"b": 1}}, {"a": {"c": {"d": 2}}}
    assert merged(base, extra) == {"a": {"b": 1, "c": {"d": 2}}}
    assert (base, extra) == ({"a": {"b": 1}}, {"a": {"c": {"d": 2}}})


def test_a_model_of_the_mix_wins_over_the_runs_model() -> None:
    assert body(planned("openai.chat", model="lora"), TEXT, BodyOptions(model="base"))["model"] == "lora"


def test_token_ids_go_where_they_are_taken_and_are_refused_elsewhere() -> None:
    ids = Content(token_ids=(1, 2))
    assert body(planned("openai.completions"), ids, BodyOptions())["prompt"] == [1, 2]
    assert body(planned("sglang.generate"), ids, BodyOptions())["input_ids"] == [1, 2]
    with pytest.raises(UserError, match="token ids"):
        body(planned("openai.chat"), ids, BodyOptions())


def test_a_system_text_stands_where_each_api_wants_it() -> None:
    options = BodyOptions(system="be brief")
    assert body(planned("openai.chat"), TEXT, options)["messages"][0] == {"role": "system", "content": "be brief"}
    assert body(planned("anthropic.messages"), TEXT, options)["system"] == "be brief"
    assert body(planned("openai.responses"), TEXT, options)["instructions"] == "be brief"


def test_unknown_apis_and_limit_names_are_refused() -> None:
    with pytest.raises(UserError):
        body(planned("openai.chats"), TEXT, BodyOptions())
    with pytest.raises(UserError):
        body(planned("openai.chat"), TEXT, BodyOptions(max_tokens_field="limit"))
