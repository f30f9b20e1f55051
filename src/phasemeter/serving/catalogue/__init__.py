"""Data files: accelerators and model shapes, each figure with its source."""
