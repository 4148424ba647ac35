"""Programs that are sent into a sandbox; nothing here is imported by the framework."""
