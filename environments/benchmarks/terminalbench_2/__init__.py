"""Terminal-Bench 2."""
