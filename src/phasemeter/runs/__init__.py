"""One measured run, whole: plan, workers, evidence, analysis."""
