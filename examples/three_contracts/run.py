"""Three workloads, three contracts, one deployment: three right answers to "how much can it carry, and what stops it?".

The same as `phasemeter goodput --simulate deployment.yaml --contract chat.yaml` for each contract, side by side.
"""

from pathlib import Path

from phasemeter.contract.model import parse
from phasemeter.runs.goodput import Limits, search_plan
from phasemeter.serving.plan import parse_plan

HERE = Path(__file__).parent
PRICE_PER_HOUR = 1.50  # of the deployment, for the last column; any price: the order of the three stays

plan = parse_plan((HERE / "deployment.yaml").read_text(encoding="utf-8"), "deployment.yaml")
print(f"{plan.deployment.model} on one {plan.deployment.hardware}, {plan.deployment.policy}\n")
print(
    f"{'contract':16} {'goodput, req/s':>15} {'95 % interval':>16} {'binds':>10} {'output tokens/s':>16} {'USD per million':>16}"
)
for name, tokens in (("chat", 100), ("batch", 200), ("long_generation", 1500)):
    contract = parse((HERE / f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    found, _ = search_plan(plan, contract, Limits(), None, lambda line: None)
    bounds = " … ".join("–" if bound is None else f"{bound:.3g}" for bound in found.interval)
    rate = found.value * tokens
    cost = PRICE_PER_HOUR / 3600 / rate * 1e6
    print(f"{name:16} {found.value:15.3g} {bounds:>16} {found.binding:>10} {rate:16.0f} {cost:16.2f}")
print("""
chat is stopped by the first token's wait, before the deployment is full; batch only by the full deployment itself: a minute
is long, and past the rate where the queue grows no document is through in time; long generation by the cadence: a full batch
decodes slower than promised. One number for all three ("requests per second") would be wrong for two of them.""")
