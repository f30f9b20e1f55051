"""Frozen, versioned records: what was planned, what was seen, what was told. Nothing derived by a definition."""
