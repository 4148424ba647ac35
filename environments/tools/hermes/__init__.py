"""Other tools of an installed Hermes Agent, in a process with its own virtual environment."""
