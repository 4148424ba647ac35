"""The browser tools: one Chromium for the run, one isolated context for each rollout."""
