"""The program that ends instances at their deadlines, whatever becomes of the run that started them.

Its input is a socket. Each message is ``NUMBER SECONDS MARK`` with a descriptor of an instance's init (a
pidfd): that one is to end after so many seconds; a later message with the same number replaces it. All
that serves the instance, and all that runs in it, bears a mark that begins with ``MARK``. The program
stays until its input has ended and no instance is left.
"""

import os
import select
import signal
import socket
import time
from pathlib import Path

STOPPED_PATIENCE = 2.0
"""Seconds that what is outside an ended instance has to end by itself, once it was told to go on."""

_LIMIT = b"Max file locks"
_SHORTEST_MARK = 10


class Instance:
    """One instance: its init, when it is to end, and what its processes are known by."""

    def __init__(self, pidfd: int, seconds: float, mark: bytes) -> None:
        self.pidfd = pidfd
        self.deadline = time.monotonic() + seconds
        self.next = self.deadline
        self.mark = mark


def main() -> None:
    """Serve standard input."""
    orders = socket.socket(fileno=0)
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    instances: dict[int, Instance] = {}
    listening = True
    while listening or instances:
        now = time.monotonic()
        waiting = [instance.next - now for instance in instances.values()]
        ready = {fd for fd, _ in poll.poll(max(0.0, min(waiting)) * 1000 + 1 if waiting else None)}
        if orders.fileno() in ready and not _take(orders, poll, instances):
            poll.unregister(orders)
            listening = False
        for number, instance in list(instances.items()):
            if instance.pidfd in ready:
                _forget(poll, instances.pop(number))
            elif instance.next <= time.monotonic():
                _end(instance)
                instance.next = time.monotonic() + 1.0


def signal_marked(mark: bytes, number: int) -> int:
    """Send a signal to all processes whose mark begins with ``mark``; how many they are.

    An instance cannot end before the engine's processes outside it have taken note of the end of theirs
    inside, which those do not that a command in it has stopped: a group of processes spans both.
    ``ValueError`` for what could be the beginning of another sandbox's mark.
    """
    if len(mark) < _SHORTEST_MARK or not mark.isdigit():
        raise ValueError(f"{mark!r} begins the mark of no sandbox")
    if number == signal.SIGKILL:  # all at once: what joins an instance must not see its parent go before it
        _send(_bearers(mark), signal.SIGSTOP)
    found = _bearers(mark)
    _send(found, number)
    return len(found)


def _bearers(mark: bytes) -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _bears(path, mark)]


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # it ended just now, or became another user's
            continue


def mark_borne(process: Path) -> bytes:
    """The mark of a process, given its directory in ``/proc``; empty where it cannot be told."""
    try:
        words = (process / "limits").read_bytes().partition(_LIMIT)[2].split(None, 1)
    except OSError:  # gone, or another user's
        return b""
    return words[0] if words else b""


def _bears(process: Path, mark: bytes) -> bool:
    if not mark_borne(process).startswith(mark):
        return False
    try:
        return (process / "stat").read_bytes().rpartition(b")")[2].split(None, 1)[0] not in b"ZX"
    except (OSError, IndexError):  # gone just now
        return False


def _take(orders: socket.socket, poll: select.poll, instances: dict[int, Instance]) -> bool:
    """Take one message; False at the end."""
    data, descriptors, _, _ = socket.recv_fds(orders, 200, 1)
    if not data or len(descriptors) != 1:
        return bool(data)
    number, seconds, mark = data.split()
    if int(number) in instances:
        _forget(poll, instances.pop(int(number)))
    poll.register(descriptors[0], select.POLLIN)
    instances[int(number)] = Instance(descriptors[0], float(seconds), mark)
    return True


def _forget(poll: select.poll, instance: Instance) -> None:
    poll.unregister(instance.pidfd)
    os.close(instance.pidfd)


def _end(instance: Instance) -> None:
    try:
        signal.pidfd_send_signal(instance.pidfd, signal.SIGKILL)
    except ProcessLookupError:  # it ended just now
        return
    overdue = time.monotonic() - instance.deadline
    signal_marked(instance.mark, signal.SIGKILL if overdue > STOPPED_PATIENCE else signal.SIGCONT)


if __name__ == "__main__":
    main()
