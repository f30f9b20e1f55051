"""Everything before a run's first byte: what was asked, what is on file, what the server says to a probe.

Lives here: the order in which mistakes are found, the cheap ones first. Must not live here: the load, or a run directory.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import msgspec

from phasemeter.errors import NetworkError, ServerError, UserError
from phasemeter.io import descriptor_limit
from phasemeter.runs.asked import Asked
from phasemeter.runs.conversation_turns import WITH_MESSAGES
from phasemeter.runs.privacy import hidden, secrets_of
from phasemeter.runs.probe import Probed, probe
from phasemeter.runs.prompt_source import PromptSource, read_prompt_file
from phasemeter.runs.settings import Settings, settings_of
from phasemeter.runs.tokenizer import load_tokenizer
from phasemeter.runs.trace_replay import sessions_in, trace_of
from phasemeter.workload.plan import WorkloadSpec
from phasemeter.workload.prompt_files import FilePrompt
from phasemeter.workload.prompts import PromptOptions
from phasemeter.workload.trace_words import words_of
from phasemeter.workload.traces import BLOCK_TOKENS

RUNS = Path("runs")


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can begin. `prompt_set`: the identity of what will be asked, whatever the salt."""

    settings: Settings
    probed: Probed
    source: PromptSource
    output: Path
    prompt_set: str


def prepare(url: str, asked: Asked, note: Callable[[str], None]) -> Prepared:
    """What a run of `asked` against `url` needs. `note` gets what a person should know.

    Raises UserError, NetworkError or ServerError (exit code 2) for what would be no measurement.
    """
    if asked.output is not None and Path(asked.output).exists():
        raise UserError(f"{asked.output} exists already: give another -o/--output, or remove it")
    settings = settings_of(url, asked)
    unasked: list[int] = []
    rows = read_prompt_file(asked.prompts, unasked) if asked.prompts else []
    settings = _with_rows(settings, rows)
    _check_trace(settings)
    tokenizer = load_tokenizer(Path(asked.tokenizer)) if asked.tokenizer else None
    _check_turns(settings)
    _require_descriptors(settings)
    settings = _with_sessions(_with_trace(settings))
    for words in (*settings.notes, *_about(rows, settings.spec, unasked)):
        note(words)
    probed = _probed(settings)
    for words in probed.notes:
        note(words)
    spec = msgspec.structs.replace(settings.spec, models=probed.models, ignore_eos=probed.ignore_eos)
    settings = msgspec.structs.replace(settings, spec=spec)
    trace = trace_of(asked)
    source = PromptSource(
        options=PromptOptions(
            seed=spec.seed, salt=f"{time.time_ns():x}{os.getpid():x}", token_ids=asked.token_ids,
            token_id_range=probed.token_id_range, block_tokens=BLOCK_TOKENS if trace is None else trace.block_tokens,
        ),
        body_options=msgspec.structs.replace(probed.body, model=spec.models[0][0] if spec.models else None),
        lengths=probed.lengths, tokenizer=tokenizer, rows=rows,
    )  # fmt: skip
    output = Path(asked.output) if asked.output else default_output(settings)
    return Prepared(
        settings=settings, probed=probed, source=source, output=output,
        prompt_set=source.identity(_drawn_from(spec), [Path(asked.trace)] if asked.trace else []),
    )  # fmt: skip


def check(url: str, asked: Asked) -> None:
    """What can be found wrong without a server, as `prepare` would find it: a series is checked to its last run before the first."""
    settings = settings_of(url, asked)
    _check_trace(settings)
    _check_turns(settings)
    _require_descriptors(settings)


def _require_descriptors(settings: Settings) -> None:
    descriptor_limit.require(-(-expected_open(settings.spec) // max(1, settings.asked.processes)))


def _probed(settings: Settings) -> Probed:
    """The probe's findings; a server's words are repeated without what they echo of a secret."""
    secrets = secrets_of(settings)
    try:
        probed = probe(settings)
    except (NetworkError, ServerError) as refused:
        raise type(refused)(hidden(str(refused), secrets)) from None
    return msgspec.structs.replace(probed, notes=tuple(hidden(words, secrets) for words in probed.notes))


def _with_rows(settings: Settings, rows: list[FilePrompt]) -> Settings:
    """Each row of a prompt file once, where no other end was asked for; rows that are sent again are on the run's record."""
    asked, spec = settings.asked, settings.spec
    if not rows:
        return settings
    if asked.requests or asked.duration or asked.trace:
        wanted = -(-(spec.requests or 0) // spec.turns)
        return _noted(settings, rows, wanted) if wanted > len(rows) else settings
    return msgspec.structs.replace(settings, spec=msgspec.structs.replace(spec, requests=len(rows) * spec.turns))


def _noted(settings: Settings, rows: list[FilePrompt], wanted: int) -> Settings:
    words = f"{wanted} requests take the {len(rows)} prompts of the file in turn, again from the first: a prefix cache may help"
    return msgspec.structs.replace(settings, notes=(*settings.notes, words))


def _with_trace(settings: Settings) -> Settings:
    """No more requests than the trace has rows, and what was left out of it or changed is on the run's record."""
    trace, spec = trace_of(settings.asked), settings.spec
    if trace is None:
        return settings
    notes = words_of(trace)
    if trace.offsets_ns is not None and spec.arrivals.kind != "trace":
        notes.append("the trace's rows are offered by --rate or --concurrency: its own time stamps are left out")
    for option, column in (("input", trace.input_tokens), ("output", trace.output_tokens)):
        if column is not None and getattr(settings.asked, f"{option}_tokens") is not None:
            notes.append(f"--{option}-tokens: the trace's rows say their own {option} lengths, and those are asked")
    rows = len(trace.lines)
    if spec.requests is not None and spec.requests != rows:
        notes.append(f"--requests {spec.requests}: {min(spec.requests, rows)} of the trace's {rows} rows, each once")
        spec = msgspec.structs.replace(spec, requests=min(spec.requests, rows))
    if spec.duration_s is not None and trace.offsets_ns is not None and spec.arrivals.kind == "trace":
        within = bisect_left(trace.offsets_ns, round(spec.duration_s * 1e9))
        if within < rows:
            notes.append(f"--duration {settings.asked.duration}: {within} of the trace's {rows} rows are due by then")
    return msgspec.structs.replace(settings, spec=spec, notes=(*settings.notes, *notes))


def _about(rows: list[FilePrompt], spec: WorkloadSpec, unasked: list[int]) -> list[str]:
    turns = [1 + len(row.later_user_texts) for row in rows]
    if not turns:
        return []
    if unasked:
        number = len(rows) + len(unasked)
        silent = (
            f"{len(unasked)} of {number} conversations (the first: {unasked[0]}) are left out: no user speaks in them"
        )
        return [silent, *_about(rows, spec, [])]
    if spec.turns == 1 and max(turns) > 1:
        return [
            f"the prompts hold conversations of up to {max(turns)} turns: only first turns are sent (--turns N: more)"
        ]
    short = sum(count < spec.turns for count in turns)
    return [f"{short} of {len(rows)} conversations have fewer than {spec.turns} turns and end sooner"] if short else []


def _check_trace(settings: Settings) -> None:
    """A trace's faults are named now, not under load."""
    trace = trace_of(settings.asked)
    if trace is not None and trace.input_tokens is None and settings.spec.input_tokens is None:
        raise UserError(f"{settings.asked.trace}: has no input lengths: give --input-tokens")
    if trace is not None and trace.offsets_ns is None and settings.spec.arrivals.kind == "trace":
        raise UserError(
            f"{settings.asked.trace}: has no time stamps: give --rate or --concurrency, its lengths are kept in order"
        )


def _with_sessions(settings: Settings) -> Settings:
    """Sessions are replayed as conversations, and the run says so."""
    sessions = sessions_in(settings.asked, settings.spec)
    if not sessions:
        return settings
    words = (
        f"{len(sessions)} sessions of the trace have several rows ({sum(map(len, sessions.values()))}): a later one goes out"
        " at its own instant or once the answer before it is there, whichever is later (--no-sessions: at its own)"
    )
    return msgspec.structs.replace(settings, notes=(*settings.notes, words))


def _check_turns(settings: Settings) -> None:
    spec, asked = settings.spec, settings.asked
    if spec.turns == 1:
        return
    if spec.api not in WITH_MESSAGES:
        raise UserError(f"--turns: {spec.api} has no messages to hold a history: {', '.join(WITH_MESSAGES)} do")
    if asked.token_ids:
        raise UserError("--turns and --token-ids: a history is text: leave one of them out")
    if asked.trace is not None:
        raise UserError("--turns and --trace: a trace says what each request is: leave one of them out")


def expected_open(spec: WorkloadSpec) -> int:
    """How many connections may be open at once, as far as it can be known before."""
    if spec.concurrency is not None:
        return spec.concurrency
    return spec.requests or 0 if spec.arrivals.kind == "inf" else 0


def _drawn_from(spec: WorkloadSpec) -> WorkloadSpec:
    """The part of a workload that its prompts are made from: not when they are due, nor for which model."""
    return WorkloadSpec(
        arrivals=type(spec.arrivals)(kind="closed"), seed=spec.seed, input_tokens=spec.input_tokens, turns=spec.turns,
        classes=spec.classes, prefix_groups=spec.prefix_groups, prefix_tokens=spec.prefix_tokens, requests=spec.requests,
    )  # fmt: skip


def default_output(settings: Settings) -> Path:
    """runs/<utc>-<model>, with a number where that is taken."""
    model = settings.spec.models[0][0] if settings.spec.models else settings.spec.api
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model.rpartition("/")[2])
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{plain[:60] or 'run'}"
    path, number = RUNS / name, 2
    while path.exists():
        path, number = RUNS / f"{name}-{number}", number + 1
    return path
