"""TBLite, a smaller set of tasks in the manner of Terminal-Bench 2."""
