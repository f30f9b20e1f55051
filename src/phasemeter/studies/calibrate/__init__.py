"""Step-time constants from runs: what ran beside what, a robust fit, what it can't tell, and how far its predictions are off."""
