"""Grading: a task's tests run after the agent, so that the agent cannot have prepared the result."""
