"""Tools for pictures: looking at them, and making them, by an OpenAI-compatible API."""
