"""The house keeps its own rules, and the rules catch code that breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import circles, violations

SRC = Path(__file__).parent.parent / "src"


def sources() -> dict[str, str]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path.read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize("module", sources())
def test_every_module_keeps_the_rules(module: str) -> None:
    assert violations(module, sources()[module]) == []


def test_no_import_circles() -> None:
    assert circles(sources()) == []


def function(lines: int = 1, parameters: str = "") -> str:
    return f"def f({parameters}):\n" + "    x = 1\n" * lines


OFFENDERS = {
    "an import upwards": ("phasemeter.wire.sse", "from phasemeter.metrics import tokens\n", "not below"),
    "an import sideways": ("phasemeter.wire.sse", "import phasemeter.stats.quantiles\n", "not below"),
    "an import upwards by lazy name": ("phasemeter.wire.sse", "x = load('phasemeter.report.html')\n", "not below"),
    "a package imported from the root": ("phasemeter.wire.sse", "from phasemeter import metrics\n", "not below"),
    "a clock in a pure floor": ("phasemeter.serving.engine", "import time\n", "pure floor"),
    "a file in a pure floor": ("phasemeter.workload.traces", "f = open('x')\n", "pure floor"),
    "os.path in a pure floor": ("phasemeter.workload.traces", "from os.path import join\n", "pure floor"),
    "a sender that parses": ("phasemeter.io.load", "from phasemeter.wire import sse\n", "neutral"),
    "a sender that measures": ("phasemeter.io.connection", "import phasemeter.metrics.boundaries\n", "neutral"),
    "a long module": ("phasemeter.wire.sse", "x = 1\n" * 401, "more than 400"),
    "a long function": ("phasemeter.wire.sse", function(lines=60), "more than 60"),
    "many parameters": ("phasemeter.wire.sse", function(parameters="a, b, c, d, e, f, g"), "more than 6"),
    "many keyword parameters": ("phasemeter.wire.sse", function(parameters="a, b, *, c, d, e, f, g"), "more than 6"),
    "deep nesting": (
        "phasemeter.wire.sse",
        "def f():\n" + "".join("    " * (i + 1) + "if x:\n" for i in range(5)) + "    " * 6 + "pass\n",
        "nests 5",
    ),
    "an import inside a function": ("phasemeter.cli.bench", "def f():\n    import polars\n", "lazy.py"),
    "importlib outside lazy": ("phasemeter.cli.bench", "import importlib\nimportlib.import_module('x')\n", "lazy.py"),
    "a bare except": ("phasemeter.io.load", "try:\n    x\nexcept:\n    pass\n", "broad except"),
    "a broad except in a tuple": (
        "phasemeter.io.load",
        "try:\n    x\nexcept (OSError, Exception):\n    pass\n",
        "broad except",
    ),
    "a manager": ("phasemeter.io.load", "class LoadManager: pass\n", "no Base"),
    "a base class": ("phasemeter.io.load", "class BaseLoad: pass\n", "no Base"),
    "a drawer of odds and ends": ("phasemeter.io.utils", "x = 1\n", "named for what lives in it"),
}


@pytest.mark.parametrize("offence", OFFENDERS)
def test_offending_code_is_caught(offence: str) -> None:
    module, text, rule = OFFENDERS[offence]
    found = violations(module, text)
    assert len(found) >= 1 and all(rule in line for line in found), found


INNOCENT = {
    "a verb with many options": ("phasemeter.cli.bench", function(parameters="url, *, a, b, c, d, e, f, g, h")),
    "elif chains": (
        "phasemeter.wire.sse",
        "def f(x):\n    if x == 0:\n        pass\n"
        + "".join(f"    elif x == {i}:\n        pass\n" for i in range(1, 9)),
    ),
    "its own package": ("phasemeter.wire.openai_chat", "from phasemeter.wire import events\n"),
    "the floors below": ("phasemeter.metrics.boundaries", "from phasemeter.wire import events\nimport numpy\n"),
    "a broad except at the door": ("phasemeter.cli.main", "try:\n    x\nexcept Exception:\n    pass\n"),
    "the emulator speaks HTTP": ("phasemeter.io.emulator", "from phasemeter.serving import engine\n"),
}


@pytest.mark.parametrize("case", INNOCENT)
def test_innocent_code_passes(case: str) -> None:
    assert violations(*INNOCENT[case]) == []


def test_a_circle_is_caught() -> None:
    assert circles(
        {"phasemeter.wire.a": "import phasemeter.wire.b\n", "phasemeter.wire.b": "import phasemeter.wire.a\n"}
    )
