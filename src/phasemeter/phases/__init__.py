"""Client and server views joined into an additive budget, and what it says is slow."""
