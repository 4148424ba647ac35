"""The backend ``modal``: sandboxes on Modal's machines, by Modal's own SDK.

* ``sdk``: the SDK, imported when it is first used, its client, and what its errors mean;
* ``images``: an image from a registry or a Dockerfile;
* ``backend``: making sandboxes, and ending those that dead runs left;
* ``machine``, ``channel``: what happens inside one.
"""
