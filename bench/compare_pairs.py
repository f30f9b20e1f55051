"""How often `compare` finds a difference between two runs that differ in nothing but chance.

    python bench/compare_pairs.py [--emulated 30] [--simulated 100]

Emulated pairs are real runs: an emulator in a process of its own, two `bench` runs over loopback for each pair (100 requests at 20/s,
other seeds), compared as the verb compares them. Simulated pairs are the same deployment in virtual time, 300 requests each. A pair
is flagged when any test is significant at 5 % after Holm's correction; a refusal is counted apart. At most 10 of 100 may be flagged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from phasemeter.cli.main import run

PLAN = """
workload:
  input_tokens: {uniform: {min: 50, max: 400}}
  output_tokens: {uniform: {min: 8, max: 24}}
  arrivals: {poisson: 50/s}
  requests: 300
deployment: {model: llama-3.1-8b, hardware: HARDWARE, policy: vllm_v1}
"""


def said(words: list[str]) -> tuple[int, dict[str, Any]]:
    """A verb's exit code and its one JSON document."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run([*words, "--json"])
    return code, json.loads(out.getvalue() or "{}")


def flagged(a: Path, b: Path) -> tuple[str, list[str]]:
    """("refused" | "equal" | "flagged", the tests that flagged it)."""
    _, answer = said(["compare", str(a), str(b)])
    if not answer["comparable"]:
        return "refused", answer["refusals"]
    hits = [
        f"{one['metric']} {one['statistic']}"
        for one in (*answer["differences"], *answer["phases"])
        if one["significant"]
    ]
    return ("flagged" if hits else "equal"), hits


def emulated(pairs: int, first: int, folder: Path) -> Counter[str]:
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.replace("HARDWARE", "L40S"))
    server = subprocess.Popen(
        [sys.executable, "-m", "phasemeter", "emulate", str(plan), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        if found is None:
            sys.exit("the emulator did not start")
        return count(pairs, lambda pair, side: measured(found[0], folder, first + pair, side))
    finally:
        server.terminate()
        server.wait()


def measured(url: str, folder: Path, pair: int, side: int) -> Path:
    path = folder / f"e{pair}-{side}"
    code, _ = said(["bench", url, "--requests", "100", "--rate", "20/s", "--input-tokens", "uniform:50:400", "--output-tokens",
                    "uniform:8:24", "--warmup", "10", "--seed", str(2 * pair + side), "-o", str(path), "--quiet"])  # fmt: skip
    if code != 0:
        sys.exit(f"bench ended with {code}")
    return path


def simulated(url_less: Path, folder: Path, pair: int, side: int) -> Path:
    path = folder / f"s{pair}-{side}"
    said(["simulate", str(url_less), "--seed", str(1000 + 2 * pair + side), "-o", str(path)])
    return path


def count(pairs: int, make: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    for pair in range(pairs):
        verdict, why = flagged(make(pair, 0), make(pair, 1))
        seen[verdict] += 1
        if why:
            print(f"  pair {pair}: {verdict}: {'; '.join(why)}", file=sys.stderr, flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--emulated", type=int, default=30)
    parser.add_argument("--simulated", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first emulated pair: its seeds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("emulated", dict(emulated(asked.emulated, asked.first, folder)), flush=True)
        plan = folder / "virtual.yaml"
        plan.write_text(PLAN.replace("HARDWARE", "H100"))
        print(
            "simulated",
            dict(count(asked.simulated, lambda pair, side: simulated(plan, folder, pair, side))),
            flush=True,
        )


if __name__ == "__main__":
    main()
