"""The local backend: sandboxes on this machine, isolated by its kernel.

Each sandbox has two small programs of ours, both forked from one interpreter that runs the package
``inside`` (standard library only):

* the *guardian* stays outside. It builds the isolation, kills process trees, enforces limits and
  the lifetime, and takes everything down when the framework or the init process dies;
* the *init* process lives in the sandbox. It does small file operations itself and forks a supervisor
  for a command; one whose command has left nothing behind takes the next command too.

The framework's side (``backend``, ``sandbox``, ``job``) only exchanges messages with them.
"""
