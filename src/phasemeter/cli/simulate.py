"""`phasemeter simulate`: a plan in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.completed import FileName
from phasemeter.cli.contract import read_contract
from phasemeter.cli.numbers import WHOLE
from phasemeter.errors import FileError


def simulate(
    plan: FileName,
    *,
    output: Annotated[FileName | None, Parameter(name=["-o", "--output"], help="write a run directory here")] = None,
    seed: Annotated[int | None, WHOLE, Parameter(help="replaces the plan's seed")] = None,
    replications: Annotated[
        int, WHOLE, Parameter(help="how many runs, each with its own seed, for intervals between runs")
    ] = 1,
    goodput: Annotated[
        bool, Parameter(negative="", help="find the highest rate that keeps the plan's objectives")
    ] = False,
    contract: Annotated[
        FileName | None,
        Parameter(
            help="simulate its workload and count its goodput; with --goodput: find the highest rate that keeps it"
        ),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
) -> int:
    """Predict a deployment: scheduler × cost model × workload, in virtual time.

    Prints the same metrics as a measured run, and what only a simulator knows: queue, prefill, stalls by cause, preemptions,
    KV in use. With -o it writes a run directory that `report`, `check` and `compare` read.

    Parameters
    ----------
    plan
        a plan: `workload` and `deployment` in YAML

    Examples:
        phasemeter simulate plan.yaml
        phasemeter simulate plan.yaml --json --seed 7 > result.json
        phasemeter simulate plan.yaml --replications 10 -o runs/simulated
        phasemeter simulate plan.yaml --contract chat.yaml --goodput
    """
    read, promised = read_plan(str(plan)), None
    if contract is not None:
        promised = read_contract(lazy.load("pathlib").Path(contract))
        read = lazy.load("phasemeter.runs.goodput").workload_of(read, promised)
    if goodput and promised is not None:
        return search(read, promised, json=json)
    runs, strict = lazy.load("phasemeter.runs.simulate"), lazy.load("phasemeter.metrics.document").strict
    dumps = lazy.load("json").dumps
    if goodput:
        found = strict(lazy.load("msgspec").to_builtins(runs.search_goodput(read)))
        if json:
            print(dumps(_goodput_document(found), ensure_ascii=False, allow_nan=False))
        else:
            _show_goodput(found)
        return 0 if found["value"] is not None else 3
    folder = lazy.load("pathlib").Path(output) if output is not None else None
    with lazy.load("phasemeter.report.live").simulating() as tell:
        document = runs.simulate(
            read, seed=seed, replications=replications, output=folder, contract=promised, tell=tell
        )
    for words in document["run"].get("notes") or ():
        print(f"note: {words}", file=sys.stderr)
    if json:
        print(dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        _show(document)
    if folder is not None:
        lazy.load("phasemeter.report.html.write").write_html(folder, folder / "report.html")
        print(f"written to {output} (to look at: {folder / 'report.html'})", file=sys.stderr)
    return 0 if document["outcomes"]["ok"] else 1


def search(plan: Any, contract: Any, *, json: bool) -> int:
    """As `phasemeter goodput --simulate` answers."""
    runs, report = lazy.load("phasemeter.runs.goodput"), lazy.load("phasemeter.report.goodput")
    found, promise = runs.search_plan(plan, contract, runs.Limits(), None, lambda line: print(line, file=sys.stderr))
    answer = runs.document(found, promise)
    if json:
        print(report.dumps(answer))
    else:
        lazy.load("phasemeter.report.fold").show(report.words(answer))
    return int(report.exit_code(answer))


def read_plan(path: str, parse: Callable[..., Any] | None = None) -> Any:
    """The plan in a file, as `parse` takes it; None: one deployment. Raises FileError where it can't be read, UserError where it is
    no plan."""
    file = lazy.load("pathlib").Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise FileError(f"{path}: {reason}: give the path of a plan in YAML") from error
    lines_of = lazy.load("phasemeter.runs.trace_files").lines_of
    parse = parse or lazy.load("phasemeter.serving.plan").parse_plan
    return parse(text, path, lambda named: lines_of(file.parent / named))


def _goodput_document(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "goodput_per_s": {"value": found["value"], "ci95": found["ci95"]},
        "binding": found["binding"],
        "reason": found["reason"],
        "probes": [
            {
                "rate_per_s": probe["rate_per_s"],
                "attainment": {"value": probe["attainment"]["value"], "ci95": probe["attainment"]["ci95"]},
                "stable": probe["attainment"]["stable"],
                "run": probe["attainment"]["run"],
            }
            for probe in found["probes"]
        ],
    }


def _show_goodput(found: dict[str, Any]) -> None:
    for probe in found["probes"]:
        attained = probe["attainment"]
        unstable = "" if attained["stable"] is not False else ", the queue grew"
        print(f"{probe['rate_per_s']:8.3f} req/s   {100 * attained['value']:5.1f} % within the objectives{unstable}")
    if found["value"] is None:
        print(f"no goodput: {found['reason']}")
    else:
        limit = f", limited by {found['binding']}" if found["binding"] else f" ({found['reason']})"
        print(f"goodput {found['value']:.3f} req/s{limit}")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _show(document: dict[str, Any]) -> None:
    """A page: the metrics, the phases, the load."""
    run, outcomes = document["run"], document["outcomes"]
    print(f"{run['model']} on {run['accelerator_count']} × {run['accelerator']}, {run['scheduling']}, simulated")
    failed = sum(outcomes["failed"].values())
    print(f"{outcomes['ok']} of {outcomes['scheduled']} requests ok, {failed} failed")
    print(f"\n{'ms':>14} {'mean':>9} {'p50':>9} {'p95':>9} {'p99':>9}")
    for name in ("ttft", "tpot", "itl", "e2e"):
        metric = document["metrics"].get(name)
        if metric is None or metric["mean"] is None:
            continue
        values = [_ms(metric["mean"]), *(_ms(metric[p]["value"]) for p in ("p50", "p95", "p99"))]
        print(f"{name:>14} " + " ".join(f"{value:>9}" for value in values))
    simulation = document["simulation"]
    for name, spread in simulation["phases"].items():
        if name == "handoff" and not spread["mean"]:
            continue  # prefill's last step gives the first token
        print(f"{name:>14} " + " ".join(f"{_ms(spread[key]):>9}" for key in ("mean", "p50", "p95", "p99")))
    load, throughput = simulation["load"], document["throughput"]
    per_s, tokens_per_s = throughput.get("requests_per_s"), throughput.get("output_tokens_per_s")
    if per_s is not None and tokens_per_s is not None:
        print(f"\n{per_s:.2f} requests/s, {tokens_per_s:.0f} output tokens/s")
    print(
        f"running {load['running']['mean']:.1f} (most {load['running']['max']}), waiting {load['waiting']['mean']:.1f} "
        f"(most {load['waiting']['max']}), KV {100 * load['kv_share']['mean']:.0f} % (most {100 * load['kv_share']['max']:.0f} %), "
        f"{simulation['preemptions']} preemptions"
    )
    for pool, told in simulation["steps"].items():
        if not told:
            continue  # no step was made
        shares = sorted(told["time_share"].items(), key=lambda item: -item[1])
        where = "step time" if pool == "all" else f"{pool} step time"
        print(f"{where}: " + ", ".join(f"{name.replace('_', ' ')} {100 * value:.0f} %" for name, value in shares))
    warmup, stability = simulation["warmup"], simulation["stability"]
    print(f"warm-up: {warmup['requests']} requests cut ({warmup['rule']})", file=sys.stderr)
    verdict = {True: "stable", False: "UNSTABLE", None: "stability undecided"}[stability["stable"]]
    print(f"{verdict}: {stability['evidence']}", file=sys.stderr)
