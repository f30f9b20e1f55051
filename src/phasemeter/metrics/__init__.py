"""Boundaries to named metrics, under a stated definition. A definition is data."""
