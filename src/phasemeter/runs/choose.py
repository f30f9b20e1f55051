"""Which deployment to take: the candidates of a plan, each simulated until its goodput is known well enough.

Lives here: who can race, the race, what is done when it is interrupted. Must not live here: one look (choose_looks.py), what is found
out of the best (choose_after.py), how many copies a rate needs (choose_cluster.py), the answer's document (choose_document.py).
"""

from __future__ import annotations

import msgspec

from phasemeter.contract.goodput import Promise
from phasemeter.contract.model import Contract
from phasemeter.errors import UserError
from phasemeter.runs.choose_after import SCENARIOS, Detail, Scenario, apart_of, detail, what_if
from phasemeter.runs.choose_cluster import Sized, sized
from phasemeter.runs.choose_looks import JUDGED, Simulated, accepted
from phasemeter.runs.goodput import promised, workload_of
from phasemeter.serving.plan import Plan, demand_of, objectives_of
from phasemeter.serving.plan_candidates import Candidate, Choice
from phasemeter.serving.plan_changes import accelerators_of, hardware_of
from phasemeter.serving.sequence import Request
from phasemeter.studies.capacity import ceiling_per_s, first_requests, likely_per_s, work_of
from phasemeter.studies.paired import Targets
from phasemeter.studies.race import Entrant, Race, Racer, Tell
from phasemeter.units import share

MOST_REFUSED = 0.005
FULL, QUICK = (
    Race(targets=Targets(whole=0.9)),
    Race(targets=Targets(whole=0.9), sizes=(500, 2000), widths=(1000, 6), shown=4, patience=4000),
)


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """Who races, with the workload that all share; and who can't, each with its reason."""

    candidates: tuple[Candidate, ...]
    plans: tuple[Plan, ...]
    entrants: tuple[Entrant, ...]
    refused: tuple[Candidate, ...]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, by the number of an entrant."""

    choice: Choice
    promise: Promise
    entered: Entered
    simulated: Simulated
    racer: Racer
    details: dict[int, Detail] = msgspec.field(default_factory=dict)
    scenarios: list[Scenario] = msgspec.field(default_factory=list)
    sized: dict[int, Sized] = msgspec.field(default_factory=dict)
    interrupted: bool = False


def promise_for(choice: Choice, contract: Contract | None) -> Promise:
    """What each request has to keep. Raises UserError or FileError where neither the plan nor the contract says."""
    first = choice.first
    if contract is not None:
        found = promised(contract, choice.contract or "contract")
    else:
        objectives = objectives_of(first) if first is not None else {}
        if first is not None and not objectives:
            raise UserError(
                "`capacity.objectives`: missing: what has to be kept decides: write {ttft: 500 ms, tpot: 40 ms}, or name a contract"
            )
        attainment = share(first.capacity.attainment) if first is not None else 0.9
        if attainment > 0.9999:
            raise UserError("`capacity.attainment`: 100 %: no number of requests can show it: write less, like 99 %")
        found = Promise(objectives={None: objectives}, attainment=attainment)
    for _, metric in found.columns():
        if metric not in JUDGED:
            raise UserError(
                f"`capacity.objectives.{metric}`: candidates are held to {', '.join(sorted(JUDGED))}: leave it out here"
            )
    return found


def choose(
    choice: Choice,
    contract: Contract | None,
    *,
    seed: int | None = None,
    quick: bool = False,
    tell: Tell = lambda words: None,
) -> Chosen:
    """The race over all candidates that can be, and what follows from it. Ctrl-C ends it early and keeps what is known."""
    promise = promise_for(choice, contract)
    own = choice.seed if seed is None else seed
    entered = sorted_out(choice, contract, own)
    simulated = Simulated(entered.plans, promise, own)
    race = msgspec.structs.replace(
        QUICK if quick else FULL, targets=Targets(whole=promise.attainment, parts=promise.shares)
    )
    racer = Racer(entered.entrants, simulated.look, race, tell)
    found = Chosen(choice=choice, promise=promise, entered=entered, simulated=simulated, racer=racer)
    try:
        racer.run()
        _look_closer(found, quick, tell)
    except KeyboardInterrupt:
        return msgspec.structs.replace(found, interrupted=True)
    return found


def _look_closer(found: Chosen, quick: bool, tell: Tell) -> None:
    """What follows from the race, into `found` as it comes."""
    racer = found.racer
    for index in racer.ordered():
        found.details[index] = detail(found.simulated, index, racer)
    if found.choice.target_per_s is not None:
        found.sized.update(sized(found.simulated, racer, found.choice, tell))
    if not quick:
        for name in SCENARIOS:
            tell(f"what if: {name}")
            found.scenarios.append(what_if(racer, found.simulated.plans, name))
        if (apart := apart_of(racer, found.simulated.plans, found.scenarios)) is not None:
            found.scenarios.append(apart)


def check_rates(plan: Plan) -> None:
    """Raises UserError for arrivals that have no rate to search."""
    demand = demand_of(plan)
    if demand.mean_rate_per_s() is None:
        raise UserError(
            f"`workload.arrivals`: `{demand.arrivals.words()}` has no rate to search: write {{poisson: 1 req/s}}, or leave it out"
        )


def sorted_out(choice: Choice, contract: Contract | None, seed: int) -> Entered:
    """The candidates that serve the workload, what each costs, and the rate that no schedule exceeds.

    One that refuses more than one request in 200, as too long for it, is none: a promise of 90 % is not meant for that.
    """
    entered: list[Candidate] = []
    plans: list[Plan] = []
    entrants: list[Entrant] = []
    refused: list[Candidate] = []
    requests: list[Request] = []
    for one in choice.candidates:
        if one.plan is None:
            refused.append(one)
            continue
        plan = one.plan if contract is None else workload_of(one.plan, contract)
        if not plans:
            check_rates(plan)
        demand = demand_of(plan)
        requests = requests or first_requests(demand, seed)
        taken, reason = accepted(plan, requests)
        lost = 1 - len(taken) / len(requests)
        if lost > MOST_REFUSED:
            refused.append(
                msgspec.structs.replace(one, plan=None, reason=f"refuses {100 * lost:.2g} % of the requests: {reason}")
            )
            continue
        work = work_of(taken, len(requests), demand.turns)
        count = accelerators_of(plan)
        units = count * choice.prices[hardware_of(plan)] if choice.prices else float(count)
        ceiling, likely = ceiling_per_s(plan, work), likely_per_s(plan, work)
        entrants.append(Entrant(name=one.name, units=units, ceiling_per_s=ceiling, start_per_s=likely / 2))
        entered.append(one)
        plans.append(plan)
    return Entered(candidates=tuple(entered), plans=tuple(plans), entrants=tuple(entrants), refused=tuple(refused))
