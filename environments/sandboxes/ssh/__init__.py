"""The backend ``ssh``: sandboxes are directories and process trees of a user on a remote machine."""
