"""A sandbox on any machine that can run a POSIX shell program with its three streams in our hands."""
