"""Tasks in the Harbor format: plain values, and where they are loaded from."""
