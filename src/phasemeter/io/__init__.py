"""Sockets, files and processes: sends and writes down bytes and clock readings, and nothing else."""
