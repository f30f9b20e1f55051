"""What each engine says about its own time, and what it means by it. Fetches nothing."""
