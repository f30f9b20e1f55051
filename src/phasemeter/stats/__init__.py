"""Quantiles, their intervals, steady state: plain statistics that know no latency."""
