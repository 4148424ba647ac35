"""The process that guardians are forked from.

To start an interpreter and to load our modules costs more than all the rest of a sandbox's making; here
that is done once for all sandboxes of a run. It holds nothing of the framework: neither its environment
nor its files. It ends when the framework hangs up; guardians go on, as each looks after itself.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys

from . import guardian, wire


def main(control: int) -> None:
    """Fork guardians on request, and reap them."""
    os.set_inheritable(control, False)  # it was, to get here
    gc.collect()
    gc.freeze()  # guardians then touch, and so copy, fewer pages
    with socket.socket(fileno=control) as orders:
        children: dict[int, int] = {}
        poll = select.poll()
        poll.register(orders, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor != orders.fileno():
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    os.waitpid(children.pop(descriptor), 0)
                    continue
                message = wire.receive(orders)
                if message is None:
                    return
                child = _fork(orders, message, children)
                if child:
                    children[child[1]] = child[0]
                    poll.register(child[1], select.POLLIN)


def _fork(orders: socket.socket, message: wire.Message, others: dict[int, int]) -> tuple[int, int] | None:
    """Answer with the number of a new guardian and a descriptor of it (a pidfd)."""
    try:
        child = os.fork()
    except OSError as error:
        wire.close_all(message.descriptors)
        wire.send(orders, {"id": message.header["id"], "error": str(error), "errno": error.errno})
        return None
    if child == 0:
        _become_guardian(orders, message.descriptors, others)
    wire.close_all(message.descriptors)
    pidfd = os.pidfd_open(child)  # nobody else reaps it, so this is the one
    wire.send(orders, {"id": message.header["id"], "pid": child}, descriptors=(pidfd,))
    return child, pidfd


def _become_guardian(orders: socket.socket, descriptors: list[int], others: dict[int, int]) -> None:
    status = 1
    try:
        orders.close()
        wire.close_all([*others])
        os.setsid()
        control, requests, other_end, errors = descriptors
        os.dup2(errors, 2)
        os.close(errors)
        guardian.main(control, requests, other_end)
        status = 0
    except Exception:  # noqa: BLE001 - as the interpreter would at the end of a program
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)
