"""The program that ends instances at their deadlines, whatever becomes of the run that started them.

Its input is a socket. Each message is ``NUMBER SECONDS`` with a descriptor of an instance's init (a
pidfd): that one is to end after so many seconds; a later message with the same number replaces it.
It stays until its input has ended and no instance is left.
"""

import os
import select
import signal
import socket
import time


def main() -> None:
    """Serve standard input."""
    orders = socket.socket(fileno=0)
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    instances: dict[int, tuple[int, float]] = {}
    listening = True
    while listening or instances:
        now = time.monotonic()
        waiting = [deadline - now for _, deadline in instances.values()]
        ready = {fd for fd, _ in poll.poll(max(0.0, min(waiting)) * 1000 + 1 if waiting else None)}
        if orders.fileno() in ready and not _take(orders, poll, instances):
            poll.unregister(orders)
            listening = False
        for number, (pidfd, deadline) in list(instances.items()):
            if pidfd in ready:
                _forget(poll, instances.pop(number)[0])
            elif deadline <= time.monotonic():
                _kill(pidfd)
                instances[number] = (pidfd, time.monotonic() + 1.0)


def _take(orders: socket.socket, poll: select.poll, instances: dict[int, tuple[int, float]]) -> bool:
    """Take one message; False at the end."""
    data, descriptors, _, _ = socket.recv_fds(orders, 200, 1)
    if not data or len(descriptors) != 1:
        return bool(data)
    number, seconds = data.split()
    if int(number) in instances:
        _forget(poll, instances.pop(int(number))[0])
    poll.register(descriptors[0], select.POLLIN)
    instances[int(number)] = (descriptors[0], time.monotonic() + float(seconds))
    return True


def _forget(poll: select.poll, pidfd: int) -> None:
    poll.unregister(pidfd)
    os.close(pidfd)


def _kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:  # it ended just now
        return


if __name__ == "__main__":
    main()
