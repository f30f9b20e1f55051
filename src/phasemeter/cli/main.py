"""The door: the verb table, and how an error leaves the program.

Lives here: one line a verb (its function is loaded when it is called), exit codes. Must not live here: any work.
"""

from __future__ import annotations

import os
import sys

import cyclopts

from phasemeter import __version__
from phasemeter.errors import PhasemeterError

# verb: (module:function, one line of help). The order is the order of `phasemeter --help`.
VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("phasemeter.cli.doctor:doctor", "Say what this machine can do for a measurement"),
}


def build_app() -> cyclopts.App:
    """The command line with every verb, none of them loaded."""
    app = cyclopts.App(
        name="phasemeter",
        help="Measure, explain and plan the latency of LLM inference, by phase.",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
    )
    for name, (target, text) in VERBS.items():
        app.command(target, name=name, help=text)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code is the answer. One line a mistake, never a traceback for a user's fault."""
    try:
        answer = build_app()(arguments, exit_on_error=False, print_error=False)
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
