"""The backend ``daytona``: sandboxes on Daytona's machines, by Daytona's own SDK.

* ``sdk``: the SDK, imported when it is first used, its client, and what its errors mean;
* ``backend``, ``request``: making sandboxes, and ending those that dead runs left;
* ``machine``: what happens inside one;
* ``driver``, ``connection``, ``frames``, ``channel``: commands, over Daytona's terminals.

Daytona runs a command by an HTTP call that returns its text when it has ended: without its input,
without its bytes, and with both streams in one. Only its terminals, over web sockets, pass bytes as they
come, both ways. So a shell program of ours, the driver, runs in a terminal that is set to pass every byte
as it is, and runs there one command after another.
"""
