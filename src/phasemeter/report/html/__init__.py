"""The HTML report: one self-contained file a run, a series of runs, or a comparison.

Lives here: the pages' assembly, their style and scripts (assets/). Must not live here: computing.
"""
