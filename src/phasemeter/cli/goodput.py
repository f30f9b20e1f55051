"""`phasemeter goodput`: the highest rate that keeps a contract, on a service or on the simulator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from phasemeter import lazy
from phasemeter.cli.bench_options import BenchOptions
from phasemeter.cli.contract import read_contract
from phasemeter.errors import UserError

SEARCH = Group("Search", sort_key=0)
OF_A_PLAN = {"requests", "seed", "output", "contract", "quiet", "json", "resume"}  # what a simulated search takes


def goodput(
    url: str | None = None,
    *,
    simulate: Annotated[
        Path | None, Parameter(group=SEARCH, help="ask the simulator: a plan, in place of a URL")
    ] = None,
    max_time: Annotated[
        str | None,
        Parameter(
            group=SEARCH, help='start no run that would end later than this, like "20 min" (default for a URL: 30 min)'
        ),
    ] = None,
    precision: Annotated[
        str, Parameter(group=SEARCH, help="stop once the answer's interval is this narrow (half width, relative)")
    ] = "5 %",
    options: Annotated[BenchOptions | None, Parameter(name="*")] = None,
) -> int:
    """Find the highest rate that keeps a contract, with its interval and the objective that binds.

    Each rate tried is measured in up to 5 looks, each as long as all before it; every look is a run directory that `report`
    reads. --rate is where the search starts, --requests how long a first look is. Ends with 0, or 3 where no rate tried
    keeps the contract or none misses it, 130 when interrupted (--resume takes up what is there).

    Parameters
    ----------
    url
        the service, with or without /v1

    Examples:
        phasemeter goodput http://127.0.0.1:8000 --contract chat.yaml --max-time "20 min"
        phasemeter goodput http://127.0.0.1:8000 --contract chat.yaml --rate 4/s -o runs/search --resume
        phasemeter goodput --simulate plan.yaml --contract chat.yaml --json
    """
    wanted = options or BenchOptions()
    if (url is None) == (simulate is None):
        raise UserError("goodput asks one of two: a URL, or --simulate PLAN.yaml")
    if wanted.contract is None:
        raise UserError("goodput needs --contract: what has to be kept (`phasemeter contract new` writes a starter)")
    if wanted.concurrency is not None or wanted.trace is not None or wanted.repeat != 1 or wanted.duration is not None:
        raise UserError(
            "goodput chooses rates and lengths itself: leave out --concurrency, --trace, --duration and --repeat"
        )
    runs, units = lazy.load("phasemeter.runs.goodput"), lazy.load("phasemeter.units")
    limits = runs.Limits(
        most_s=runs.read_duration(max_time or (None if simulate else "30 min")), precision=units.share(precision),
        first_look=None if wanted.requests is None else units.count(wanted.requests), resume=wanted.resume,
    )  # fmt: skip
    contract = read_contract(Path(wanted.contract))
    if simulate is not None:
        refuse_beside_a_plan(wanted)
        found, promise, folder = _simulated(simulate, contract, limits, wanted)
    else:
        asked = lazy.load("phasemeter.runs.asked").Asked(**vars(wanted))
        with lazy.load("phasemeter.report.live").view(quiet=wanted.quiet) as watchers:
            found, promise, folder = runs.search_service(url, asked, contract, limits, watchers)
    answer = runs.document(found, promise)
    if folder is not None:
        runs.write(folder, answer)
        lazy.load("phasemeter.report.html.write").write_html(folder, folder / "report.html")
        print(f"probes: {folder} (to look at: {folder / 'report.html'})", file=sys.stderr)
    report = lazy.load("phasemeter.report.goodput")
    print(report.dumps(answer) if wanted.json else "\n".join(report.words(answer)))
    return int(report.exit_code(answer))


def refuse_beside_a_plan(wanted: BenchOptions) -> None:
    """Raises UserError for an option of a load on a service: a plan says its own workload, and nothing is sent."""
    plain = BenchOptions()
    for name, value in vars(wanted).items():
        if name not in OF_A_PLAN and value != getattr(plain, name):
            raise UserError(
                f"--{name.replace('_', '-')}: a plan says its own workload and nothing is sent: leave it out"
            )


def _simulated(plan: Path, contract: Any, limits: Any, wanted: BenchOptions) -> tuple[Any, Any, Path | None]:
    read = lazy.load("phasemeter.cli.simulate").read_plan(str(plan))
    if wanted.seed:
        read = lazy.load("msgspec").structs.replace(read, seed=wanted.seed)
    folder = None if wanted.output is None else Path(wanted.output)

    def tell(line: str) -> None:
        if not wanted.quiet:
            print(line, file=sys.stderr)

    return (*lazy.load("phasemeter.runs.goodput").search_plan(read, contract, limits, folder, tell), folder)
