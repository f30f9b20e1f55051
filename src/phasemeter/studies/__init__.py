"""Searches and fits that ask `measure(rate) -> result` and can't tell a simulator from a service."""
