"""The network policy ``allow-list``: a sandbox with no network but a proxy that lets listed hosts through."""
