"""The trajectory API: where environments leave scored groups and trainers fetch batches.

``main`` is the server's command line, ``client`` what ``serve`` speaks to it (and to the original
Atropos server) with. See ``docs/trajectory-api.md`` for the protocol.
"""
