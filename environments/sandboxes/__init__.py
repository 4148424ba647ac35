"""Sandboxes: every rollout gets its own machine."""
