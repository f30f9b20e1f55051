"""The verb table: one line a verb; its function is loaded when it is called."""

from __future__ import annotations

# verb: (module:function, one line of help). The order is the order of `phasemeter --help`.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("phasemeter.cli.demo:demo", "See it work: start the embedded engine and measure it"),
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
    "define": ("phasemeter.cli.define:define", "Show what a metric means in each tool, side by side"),
    "diagnose": ("phasemeter.cli.diagnose:diagnose", "Find out why a run was slow, step by step"),
    "evidence": (
        "phasemeter.cli.evidence:evidence",
        "Read a server's own evidence: metrics pages, spans, response timings",
    ),
    "trace": ("phasemeter.cli.trace:trace", "Look at a request trace: arrivals, lengths, faults by line"),
    "doctor": ("phasemeter.cli.doctor:doctor", "Check what this machine can measure, and how well"),
    "contract": ("phasemeter.cli.contract:contract", "Write a starter contract, explain one, print its schema"),
    "check": ("phasemeter.cli.check:check", "Check a run against its contract"),
    "goodput": ("phasemeter.cli.goodput:goodput", "Find the highest rate that keeps a contract"),
    "import": ("phasemeter.cli.import_:import_", "Import another tool's result file"),
    "compare": ("phasemeter.cli.compare:compare", "Compare two results, or say why they can't be compared"),
    "simulate": ("phasemeter.cli.simulate:simulate", "Predict a deployment in virtual time, from a plan"),
    "calibrate": (
        "phasemeter.cli.calibrate:calibrate",
        "Fit the simulator to an engine: step-time constants from runs",
    ),
    "plan": ("phasemeter.cli.plan:plan", "Choose a deployment: goodput per GPU over what a plan varies"),
    "emulate": ("phasemeter.cli.emulate:emulate", "Run a server without a GPU: a plan's engine in real time"),
    "explore": ("phasemeter.cli.explore:explore", "Explore the latency budget: a page with sliders"),
}
COMPLETION = "phasemeter.cli.completion:install_completion"
