"""The web tools: search, and the text of pages."""
