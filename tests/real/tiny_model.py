"""A model folder of our own making: a small Llama shape (random weights) and a byte-level tokenizer.

vLLM serves it with `--load-format dummy`. Its text is noise; its timing is a real engine's, with steps of some 20 ms: with a
smaller one the steps are over before the API process has written the last, and the cadence drowns in coalesced reads.
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<pad>", "<s>", "</s>")
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def byte_alphabet() -> list[str]:
    """One printable character for each byte, as byte-level tokenizers spell them (GPT-2's mapping)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = {byte: chr(byte) for byte in printable}
    for number, byte in enumerate(b for b in range(256) if b not in spelt):
        spelt[byte] = chr(256 + number)
    return [spelt[byte] for byte in range(256)]


def tokenizer() -> dict[str, object]:
    """tokenizer.json of a byte-level BPE with a few merges, so that words are shorter in tokens than in bytes."""
    alphabet = byte_alphabet()
    space = alphabet[32]
    merges = [(a, b) for a, b in ["th", "in", "er", "on", "an", "re", "st", "en", "at", "es", "or", "te", "ed", "ti"]]
    merges += [(space, letter) for letter in "abcdefghilmnoprstw"]
    pieces = [*SPECIAL, *alphabet, *(a + b for a, b in merges)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[piece], "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for piece in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [f"{a} {b}" for a, b in merges],
        },
    }  # fmt: skip


def write(folder: Path) -> Path:
    """The folder that vLLM's `--model` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    spelt = tokenizer()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "model_max_length": 8192, "chat_template": TEMPLATE,
    }  # fmt: skip
    for name, content in (("config.json", config), ("tokenizer.json", spelt), ("tokenizer_config.json", words)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return folder
