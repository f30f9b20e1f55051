"""What a service promises, and whether a run keeps it."""
