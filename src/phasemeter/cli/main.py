"""The door: the verb table, and how an error leaves the program.

Lives here: one line a verb (its function is loaded when it is called), exit codes. Must not live here: any work.
"""

from __future__ import annotations

import os
import sys

import cyclopts

from phasemeter import lazy
from phasemeter.cli.help_page import page
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
        version=lambda: lazy.load("phasemeter.cli.build").build(),
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` says it, and nothing is swallowed on the way
    )
    for name, (target, text) in VERBS.items():
        if name == wanted:
            module, _, function = target.partition(":")
            app.command(getattr(lazy.load(module), function), name=name)
        elif wanted not in VERBS:
            app.command(target, name=name, help=text)
    app.command(COMPLETION, name="--install-completion", help="Install completion for bash, zsh or fish.")
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code is the answer. One line a mistake, never a traceback for a user's fault."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] != [] and words[0] in VERBS and not {"--help", "-h"}.isdisjoint(words[1:]):
        module, _, function = VERBS[words[0]][0].partition(":")
        print(page(words[0], getattr(lazy.load(module), function)), end="")
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
