"""Are two results comparable, and if so, how do they differ."""
