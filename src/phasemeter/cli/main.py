"""The door: the verb table, and how an error leaves the program.

Lives here: one line a verb (its function is loaded when it is called), exit codes. Must not live here: any work.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable

import cyclopts

from phasemeter import lazy
from phasemeter.cli.build import build
from phasemeter.errors import PhasemeterError

# verb: (module:function, one line of help). The order is the order of `phasemeter --help`.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("phasemeter.cli.demo:demo", "See it work: measure the embedded engine"),
    "bench": ("phasemeter.cli.bench:bench", "Measure a service"),
    "inspect": ("phasemeter.cli.inspect:inspect", "Look into one exchange: boundaries, chunks, gaps, warnings"),
    "export-exchange": (
        "phasemeter.cli.export_exchange:export_exchange",
        "Write one exchange as a file for a bug report",
    ),
    "report": (
        "phasemeter.cli.report:report",
        "Read a run: latencies, throughput, validity, under any tool's definitions",
    ),
    "define": ("phasemeter.cli.define:define", "Say what a metric means to each tool, side by side"),
    "diagnose": ("phasemeter.cli.diagnose:diagnose", "Find out why a run was slow, step by step"),
    "evidence": ("phasemeter.cli.evidence:evidence", "Read server evidence: metrics pages, spans, response timings"),
    "trace": ("phasemeter.cli.trace:trace", "Look at a request trace: arrivals, lengths, faults by line"),
    "doctor": ("phasemeter.cli.doctor:doctor", "Say what this machine can do for a measurement"),
    "contract": ("phasemeter.cli.contract:contract", "Write a starter contract, explain one, print its schema"),
    "check": ("phasemeter.cli.check:check", "Hold a run to its contract"),
    "goodput": ("phasemeter.cli.goodput:goodput", "Find the highest rate that keeps a contract"),
    "import": ("phasemeter.cli.import_:import_", "Bring in another tool's result file"),
    "compare": ("phasemeter.cli.compare:compare", "Compare two results, or say why they can't be compared"),
    "simulate": ("phasemeter.cli.simulate:simulate", "Predict a deployment in virtual time, from a plan"),
    "emulate": ("phasemeter.cli.emulate:emulate", "Have a server without a GPU: a plan's engine on the wall clock"),
    "explore": ("phasemeter.cli.explore:explore", "Play with the terms of the budget: a page with sliders"),
}
COMPLETION = "phasemeter.cli.completion:install_completion"


def build_app(wanted: str | None = None) -> cyclopts.App:
    """The command line with every verb; only the `wanted` one is loaded, so that its own words are its help."""
    app = cyclopts.App(
        name="phasemeter",
        help="Measure, explain and plan the latency of LLM inference, by phase.",
        version=build,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` says it, and nothing is swallowed on the way
    )
    for name, (target, text) in VERBS.items():
        if name == wanted:
            module, _, function = target.partition(":")
            verb = getattr(lazy.load(module), function)
            app.command(verb, name=name, usage=usage_of(name, verb), help_epilogue=examples(verb.__doc__ or ""))
        elif wanted not in VERBS:
            app.command(target, name=name, help=text)
    app.command(COMPLETION, name="--install-completion", help="Install completion for bash, zsh or fish.")
    return app


def usage_of(name: str, verb: Callable[..., object]) -> str:
    """`phasemeter bench [OPTIONS] URL`: written from the signature, for working it out takes a quarter of the help's time."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY
    places = [own for own in inspect.signature(verb).parameters.values() if own.kind in kinds]
    shown = [
        own.name.strip("_").upper() + ("..." if own.kind is kinds[1] else "")
        if own.default is own.empty
        else f"[{own.name.strip('_').upper()}]"
        for own in places
    ]
    return " ".join(["Usage: phasemeter", name, "[OPTIONS]", *shown])


def examples(words: str) -> str | None:
    """The "Examples:" section that ends a verb's docstring, laid out as written."""
    _, found, rest = inspect.cleandoc(words).partition("\nExamples:\n")
    return f"Examples:\n{rest.rstrip()}" if found else None


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code is the answer. One line a mistake, never a traceback for a user's fault."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[1:] in (["--help"], ["-h"]) and words[0] in VERBS:
        gc.disable()  # short-lived, and quicker without
        build_app(words[0]).help_print([words[0]])  # no need to parse what is known
        return 0
    try:
        answer = build_app(words[0] if words else None)(words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as mistake:
        print(f"phasemeter: {one_line(mistake)}", file=sys.stderr)
        return 2
    except PhasemeterError as error:
        print(f"phasemeter: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("phasemeter: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return answer if isinstance(answer, int) else 0


def one_line(mistake: cyclopts.CycloptsError) -> str:
    return " ".join(str(mistake).split())


def main() -> None:
    """The console script."""
    sys.exit(run())
