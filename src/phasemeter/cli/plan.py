"""`phasemeter plan`: which deployment carries most within the objectives for what it costs."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.contract import read_contract
from phasemeter.cli.numbers import WHOLE
from phasemeter.errors import UserError


def plan(
    file: str | None = None,
    *,
    contract: Annotated[
        str | None, Parameter(help="a contract whose objectives and workload replace the plan's")
    ] = None,
    output: Annotated[str | None, Parameter(name=["-o", "--output"], help="write the JSON document here")] = None,
    seed: Annotated[int | None, WHOLE, Parameter(help="replaces the plan's seed")] = None,
    quick: Annotated[
        bool, Parameter(negative="", help="short looks, no what-if: wider intervals in a few seconds")
    ] = False,
    quiet: Annotated[bool, Parameter(negative="", help="no progress on standard error")] = False,
    schema: Annotated[bool, Parameter(negative="", help="print the JSON Schema of a plan, for editors")] = False,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
) -> int:
    """Choose a deployment: goodput per GPU over schedulers, parallelism, prefill/decode split.

    A plan as `simulate` takes it, with what may differ under `vary` (each with each) or `candidates` (one by one). All are
    simulated under the same requests; the best ones are looked at longer, and ties are called ties. With `target_rate` it says
    how many are needed, and simulates the whole. Ends with 0, 1 where no candidate keeps the objectives or carries the
    target rate, 130 when interrupted (what was found is printed).

    Parameters
    ----------
    file
        a plan: `workload`, `deployment`, `capacity` and `vary` in YAML

    Examples:
        phasemeter plan plan.yaml
        phasemeter plan plan.yaml --quick --json > choice.json
        phasemeter plan plan.yaml --contract chat.yaml -o choice.json
        phasemeter plan --schema > plan.schema.json
    """
    if schema:
        print(lazy.load("json").dumps(lazy.load("phasemeter.serving.plan_candidates").schema(), indent=2))
        return 0
    if file is None:
        raise UserError("plan needs a plan: phasemeter plan plan.yaml (docs/capacity.md has one to begin with)")
    parse = lazy.load("phasemeter.serving.plan_candidates").parse_choice
    choice = lazy.load("phasemeter.cli.simulate").read_plan(file, parse)
    named = contract or (str(lazy.load("pathlib").Path(file).parent / choice.contract) if choice.contract else None)
    promised = read_contract(lazy.load("pathlib").Path(named)) if named is not None else None
    report = lazy.load("phasemeter.report.choose")
    with lazy.load("phasemeter.report.live").line(quiet=quiet) as tell:
        try:
            found = lazy.load("phasemeter.runs.choose").choose(choice, promised, seed=seed, quick=quick, tell=tell)
        except UserError as error:
            words = str(error)
            raise UserError(words if words.startswith(file) else f"{file}: {words}") from error
    answer = lazy.load("phasemeter.runs.choose_document").document(found)
    if output is not None:
        lazy.load("pathlib").Path(output).write_text(report.dumps(answer) + "\n", encoding="utf-8")
        print(f"written to {output}", file=sys.stderr)
    if json:
        print(report.dumps(answer))
    else:
        width = lazy.load("shutil").get_terminal_size((100, 24)).columns
        plain = lazy.load("phasemeter.report.plain").plain
        print("\n".join(plain(line) for line in report.words(answer, max(60, width))))
    return int(report.exit_code(answer))
