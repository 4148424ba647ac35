"""The docker backend: one container per sandbox, through the HTTP API of Docker or Podman.

* ``address``, ``engine``: where the engine listens, and HTTP to it;
* ``credentials``, ``images``, ``building``: getting the image of a task;
* ``backend``, ``containers``, ``ownership``: making containers, and finding those that dead runs left;
* ``sandbox``, ``execution``, ``process``, ``guard``, ``files``, ``scripts``: what happens inside one.

Nothing is installed in the container: an image needs ``/bin/sh``, ``sleep`` and, for files, the
usual small tools (``cat``, ``stat``, ``mv``, ``tar``), as every Debian, Alpine or BusyBox image has.
"""
