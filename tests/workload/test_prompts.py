"""Prompts: the asked length, unique unless asked otherwise, repeatable."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.records.request import PlannedRequest
from phasemeter.workload.length_model import LengthModel, fit_length_model
from phasemeter.workload.prompts import PromptOptions, fit, prompt_for

PIECES = {1: "a", 2: "b", 3: "c", 4: "d", 5: "bc", 6: "ab", 7: "cd", 8: "xx", 9: "x"}
MERGES = [("b", "c"), ("x", "x"), ("a", "b"), ("c", "d")]


class Toy:
    """Characters, then merges in list order, each to exhaustion from the left: decoding and encoding again changes lengths."""

    def encode(self, text: str) -> list[int]:
        parts = list(text)
        for left, right in MERGES:
            merged: list[str] = []
            for part in parts:
                if merged and merged[-1] == left and part == right:
                    merged[-1] = left + right
                else:
                    merged.append(part)
            parts = merged
        ids = {piece: number for number, piece in PIECES.items()}
        return [ids[part] for part in parts]

    def decode(self, ids: object) -> str:
        return "".join(PIECES[one] for one in ids)  # type: ignore[attr-defined]


class Pairs:
    """Two characters a token: no word is one token."""

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]

    def decode(self, ids: object) -> str:
        data = b"".join(one.to_bytes(2 if one > 255 else 1, "big") for one in ids)  # type: ignore[attr-defined]
        return data.decode()


def planned(index: int, tokens: int = 200, **more: object) -> PlannedRequest:
    return PlannedRequest(request_id=f"r{index}", index=index, input_tokens=tokens, **more)  # type: ignore[arg-type]


def words(index: int, tokens: int = 200, options: PromptOptions | None = None, **more: object) -> list[str]:
    text = prompt_for(planned(index, tokens, **more), options or PromptOptions(), LengthModel()).text
    assert text is not None
    return text.split(" ")


def common(a: list[str], b: list[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.integers(0, 2**30 - 1), st.integers(0, 2**30 - 1), st.integers(0, 99))
@settings(deadline=None, max_examples=200)
def test_two_prompts_differ_within_four_words(first: int, second: int, seed: int) -> None:
    options = PromptOptions(seed=seed)
    if first != second:
        assert common(words(first, 64, options), words(second, 64, options)) < 4


def test_fifty_prompts_share_no_block_and_none_is_a_duplicate() -> None:
    texts = [words(index) for index in range(50)]
    assert {len(text) for text in texts} == {200}
    assert max(common(a, b) for a, b in pairwise(sorted(texts))) < 16
    assert len({tuple(text) for text in texts}) == 50


def test_a_prefix_group_shares_exactly_its_tokens() -> None:
    texts = [words(index, 264, prefix_group="g0", prefix_tokens=64) for index in range(50)]
    assert all(common(a, b) == 64 for a in texts for b in texts if a is not b)
    assert {len(text) for text in texts} == {264}


def test_warm_up_shares_no_prompt_with_the_measured_phase() -> None:
    assert common(words(3), words(3, phase="warmup")) < 4


def test_a_salt_sets_runs_of_one_seed_apart_and_the_seed_repeats_a_run() -> None:
    assert words(5) == words(5)
    assert common(words(5), words(5, options=PromptOptions(salt="second"))) < 16
    assert common(words(5), words(5, options=PromptOptions(seed=1))) < 16


def test_equal_blocks_are_equal_text_and_all_64_bits_count() -> None:
    options, high = PromptOptions(block_tokens=16), 2**63 + 5
    first = words(0, 40, options, hash_ids=(7, high, 9))
    second = words(1, 40, options, hash_ids=(7, high, 10))
    third = words(2, 40, options, hash_ids=(7, 5, 9))
    assert common(first, second) == 32
    assert common(first, third) == 16
    assert len(first) == 40


def test_token_ids_have_the_asked_number_and_share_as_text_does() -> None:
    options = PromptOptions(token_ids=True, token_id_range=(10, 60))
    ids = [
        prompt_for(planned(i, 40, prefix_group="g", prefix_tokens=16), options, LengthModel()).token_ids
        for i in range(40)
    ]
    assert all(one is not None and len(one) == 40 and min(one) >= 10 and max(one) < 60 for one in ids)
    assert len({one[:16] for one in ids if one}) == 1
    assert len({one[16:] for one in ids if one}) == 40


@given(st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=12), st.integers(1, 12))
@settings(deadline=None, max_examples=200)
def test_drawn_ids_are_adjusted_until_the_text_encodes_to_the_wanted_length(draw: list[int], wanted: int) -> None:
    toy = Toy()
    text = fit(toy.decode(draw), wanted, toy, lambda missing: "ad" * ((missing + 1) // 2))
    assert len(toy.encode(text)) == wanted


def test_the_toy_draws_of_public_reports_encode_to_other_lengths() -> None:
    toy = Toy()
    assert [len(toy.encode(toy.decode(d))) for d in ([6, 7, 6, 7], [9, 9, 9, 9], [1, 4, 1, 4])] == [6, 2, 4]


@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_with_a_tokenizer_the_encoded_length_is_met_and_recorded(tokens: int) -> None:
    prompt = prompt_for(planned(3, tokens), PromptOptions(), LengthModel(), Pairs())
    assert prompt.text is not None
    assert prompt.text_tokens == len(Pairs().encode(prompt.text)) == tokens


@given(
    st.floats(0.5, 4.0),
    st.integers(0, 100),
    st.lists(st.integers(10, 3000), min_size=2, max_size=9, unique=True),
    st.integers(200, 4000),
)
@settings(deadline=None, max_examples=100)
def test_the_length_model_corrects_itself_from_warm_up(
    rate: float, template: int, sizes: list[int], wanted: int
) -> None:
    def server(count: int) -> int:
        return round(rate * count) + template

    model = fit_length_model([(size, server(size)) for size in (*sizes, 4000)])
    assert abs(server(model.words_for(wanted)) - wanted) <= 0.01 * wanted + 4


def test_one_length_is_enough_for_that_length() -> None:
    for counted in (541, 1100, 350):
        model = fit_length_model([(500, counted)] * 2)
        assert abs(model.words_for(counted) - 500) <= 1
