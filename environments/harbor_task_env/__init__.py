"""Environments over tasks in the Harbor format."""
