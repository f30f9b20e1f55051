"""An emulator made from a plan.

Lives here: which engine, which names, how long answers are. Must not live here: serving them (io/emulator.py).
"""

from __future__ import annotations

import msgspec

from phasemeter.errors import UserError
from phasemeter.io.emulator import Emulator, Settings
from phasemeter.io.emulator_api import Faults
from phasemeter.serving.demand import Draws
from phasemeter.serving.deploy import build, coming
from phasemeter.serving.plan import Plan, demand_of, pools_of


def emulator(plan: Plan, name: str, *, host: str, port: int, models: tuple[str, ...] = ()) -> Emulator:
    """A server, listening but not yet serving. `name` is what an error calls the plan.

    Raises UserError for faults that aren't known and for a port that can't be had.
    """
    try:
        faults = msgspec.convert(plan.emulate, Faults)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: `emulate`: {error}") from error
    demand, pools = demand_of(plan), pools_of(plan)
    shape = next(iter(pools.values())).deployment.model
    most = min(pool.kv_tokens for pool in pools.values())
    context = min(plan.deployment.max_model_len or shape.max_context_tokens, most)
    draws, rows = Draws(demand, plan.seed), len(demand.rows or ())
    settings = Settings(
        models=models or (shape.name,),
        max_context_tokens=context,
        output_tokens=lambda index: draws.request(index % (rows or index + 1), 0).output_tokens,
        faults=faults,
        prefix_cache=plan.deployment.prefix_cache,
    )
    serving = build(plan, tokens=True)
    server = Emulator(serving, settings, host, port)
    server.look = lambda: coming(serving)
    return server
