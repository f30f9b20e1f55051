"""Fits are held against constants that are known."""
