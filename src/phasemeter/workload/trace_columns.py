"""Which column of a trace means what.

Lives here: the header names of each public trace and the names a generic file may use. Must not live here: reading rows.

Sources: Azure/AzurePublicDataset (LLM inference traces 2023, 2024), HPMLL/BurstGPT, kvcache-ai/Mooncake (FAST25 traces),
alibaba-edu/qwen-bailian-usagetraces-anon, SplitwiseSim and Vidur (arrivals and lengths of their request files).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from phasemeter.errors import FileError, UserError
from phasemeter.workload.trace_stamps import UNITS_NS

TIME = [
    "time", "timestamp", "ts", "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "arrival_ts",
    "request_time", "start_time", "offset", "arrival_offset", "request_timestamp", "created", "created_at",
    "datetime", "date", "unix_timestamp", "timestamp_start", "timestamp_start_unix", "start_timestamp",
]  # fmt: skip
SEND = ["send_time", "sent_time", "send_timestamp", "sent_at", "send"]
INPUT = [
    "input_tokens", "input_length", "input_len", "prompt_tokens", "prompt_length", "prompt_len", "context_tokens",
    "contexttokens", "num_prefill_tokens", "prefill_tokens", "request_tokens", "isl", "input", "input_token_count",
    "prompt_size", "input_toks", "num_prompt_tokens",
]  # fmt: skip
OUTPUT = [
    "output_tokens", "output_length", "output_len", "completion_tokens", "generated_tokens", "generatedtokens",
    "num_decode_tokens", "decode_tokens", "response_tokens", "osl", "output", "output_token_count", "max_tokens",
    "token_size", "output_toks", "num_output_tokens",
]  # fmt: skip
HASHES = ["hash_ids", "block_hash_ids", "hash_id"]
SESSION = ["session_id", "conversation_id", "session", "chat_id", "conversation"]
TEXTS = ["text_input", "prompt", "messages", "text"]
ROLES = ("time", "send", "input", "output", "hashes", "session")

AZURE = {"time": "TIMESTAMP", "input": "ContextTokens", "output": "GeneratedTokens"}
BURSTGPT = {"time": "Timestamp", "input": "Request tokens", "output": "Response tokens"}


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The name (as in the file) of each role's column; None: the file has none. `unit_ns` of a numeric stamp; None:
    not stated, seconds."""

    format: str
    time: str | None = None
    send: str | None = None
    input: str | None = None
    output: str | None = None
    hashes: str | None = None
    session: str | None = None
    unit_ns: int | None = None
    send_unit_ns: int | None = None
    text: str | None = None  # prompts themselves, in a file that says no lengths of them
    unread: tuple[str, ...] = ()  # the others, as the file calls them

    @property
    def read(self) -> dict[str, str]:
        """The name of each role's column."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


def plain(name: str) -> str:
    """A header name without case, blanks and signs: `Request tokens` is `request_tokens`."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def split_unit(name: str) -> tuple[str, int | None]:
    """A plain name without its unit, and that unit in ns: `arrival_time_us` is (`arrival_time`, 1000)."""
    for suffix, unit in (("_ns", "ns"), ("_us", "us"), ("_ms", "ms"), ("_s", "s"), ("_sec", "s"), ("_seconds", "s")):
        if name.endswith(suffix):
            return name.removesuffix(suffix), UNITS_NS[unit]
    return name, None


def parse_columns(text: str | None) -> dict[str, str]:
    """`--columns time=T,input=I,output=O[,hashes=H][,session=S][,send=W][,unit=ms]` as a mapping from role to name.

    Raises UserError.
    """
    chosen: dict[str, str] = {}
    for part in text.split(",") if text else []:
        role, mark, name = part.partition("=")
        role = role.strip()
        if not mark or not name.strip() or role not in (*ROLES, "unit"):
            raise UserError(
                f"columns {text!r}: write time=NAME,input=NAME,output=NAME (also hashes, session, send, unit)"
            )
        chosen[role] = name.strip()
    if chosen.get("unit", "s") not in UNITS_NS:
        raise UserError(f"columns {text!r}: unit is one of {', '.join(UNITS_NS)}")
    return chosen


def find_columns(header: Sequence[str], chosen: Mapping[str, str], where: str) -> Columns:
    """The columns of a file with this header (or of a JSON row with these keys).

    A name given by the user wins; then a known trace's own names; then the generic ones. Raises FileError that lists
    found and wanted names.
    """
    by_plain = {plain(name): name for name in reversed(header)}
    unit = UNITS_NS[chosen["unit"]] if "unit" in chosen else None
    for role, name in chosen.items():
        if role in ROLES and name not in header:
            raise FileError(f"{where}: has no column `{name}` (asked for as {role}): found {_listed(header)}")
    found = _known(header, by_plain, chosen, where) or _generic(by_plain)
    found.update({role: name for role, name in chosen.items() if role in ROLES})
    if not ({"time", "send", "input"} & set(found)):
        raise FileError(
            f"{where}: no column I know: found {_listed(header)}; wanted a time (like `timestamp`) and `input_tokens`, `output_tokens`, "
            "or name them: --columns time=NAME,input=NAME,output=NAME"
        )
    return Columns(
        format=_format(by_plain, found),
        time=found.get("time"),
        send=found.get("send"),
        input=found.get("input"),
        output=found.get("output"),
        hashes=found.get("hashes"),
        session=found.get("session"),
        unit_ns=unit or _unit(found.get("time")),
        send_unit_ns=unit or _unit(found.get("send")),
        text=None if "input" in found else next((by_plain[name] for name in TEXTS if name in by_plain), None),
        unread=tuple(name for name in dict.fromkeys(header) if name not in found.values()),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:20]) or "nothing"


def _unit(name: str | None) -> int | None:
    return split_unit(plain(name))[1] if name is not None else None


def _is_azure(by_plain: Mapping[str, str]) -> bool:
    return "contexttokens" in by_plain or "generatedtokens" in by_plain


def _is_burstgpt(by_plain: Mapping[str, str]) -> bool:
    marks = {"request_tokens", "response_tokens", "log_type", "total_tokens"}
    return "log_type" in by_plain or len(marks & set(by_plain)) >= 2


def _format(by_plain: Mapping[str, str], found: Mapping[str, str]) -> str:
    if _is_azure(by_plain):
        return "azure"
    if _is_burstgpt(by_plain):
        return "burstgpt"
    if {"parent_chat_id", "hash_ids"} <= set(by_plain):
        return "bailian"
    return "mooncake" if {"input_length", "output_length"} & set(by_plain) or "hashes" in found else "generic"


def _known(
    header: Sequence[str], by_plain: Mapping[str, str], chosen: Mapping[str, str], where: str
) -> dict[str, str] | None:
    """A public trace's columns. They are wanted by their own names: a near name may count something else."""
    if not (_is_azure(by_plain) or _is_burstgpt(by_plain)):
        return None
    kind, wanted = ("an Azure", AZURE) if _is_azure(by_plain) else ("a BurstGPT", BURSTGPT)
    missing = [name for role, name in wanted.items() if plain(name) not in by_plain and role not in chosen]
    if missing:
        raise FileError(
            f"{where}: looks like {kind} trace but lacks {_listed(missing)}: found {_listed(header)}; wanted "
            f"{_listed(list(wanted.values()))}; if another column means it, say so: --columns input=NAME,output=NAME"
        )
    found = {role: by_plain[plain(name)] for role, name in wanted.items() if plain(name) in by_plain}
    if "session_id" in by_plain:
        found["session"] = by_plain["session_id"]
    return found


def _generic(by_plain: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    stripped = {split_unit(name)[0]: original for name, original in reversed(list(by_plain.items()))}
    for role, names in (
        ("time", TIME),
        ("send", SEND),
        ("input", INPUT),
        ("output", OUTPUT),
        ("hashes", HASHES),
        ("session", SESSION),
    ):
        table = stripped if role in {"time", "send"} else by_plain
        name = next((table[candidate] for candidate in names if candidate in table), None)
        if name is not None:
            found[role] = name
    return found
