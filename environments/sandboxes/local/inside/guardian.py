"""The guardian of one sandbox: builds it, kills on request, bounds it, and takes it down.

It stays outside the sandbox, where nothing inside can see or signal it, and talks to the framework
over a socket of its own. When that socket closes, when the framework's process ends, when the init
process dies or the lifetime is over, it kills everything and removes the directory: so a framework
that was killed leaves nothing behind. A sandbox that the framework wants to keep outlives it until
its new deadline, and others of our user may visit it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from typing import Any

from . import cgroups, identity, kernel, processes, remains, root_view, wire
from .init import NAME
from .launch import LaunchError, launch
from .settings import MARGIN, Settings
from .visitors import Visitors
from .watchdog import INTERVAL, Watchdog

_COUNTED_PER_NAMESPACE = (5, 14)
"""Since this kernel RLIMIT_NPROC counts apart in each user namespace."""


def main(control: int, requests: int, other_end: int) -> None:
    """Run a guardian over these sockets: the framework's orders, and both ends of init's requests."""
    with socket.socket(fileno=control) as orders:
        first = wire.receive(orders)
        if first is None:
            return
        guardian = Guardian(Settings(first.header), orders, other_end)
        try:
            guardian.build(socket.socket(fileno=requests))
            guardian.watch()
        except (OSError, LaunchError) as error:
            guardian.tell({"error": str(error), "errno": getattr(error, "errno", None)})
        finally:
            guardian.tear_down()


_STARTING_PATIENCE = 2.0
"""Seconds that a supervisor may take to start its command or to end."""


class Guardian:
    """One sandbox as seen from outside."""

    def __init__(self, settings: Settings, orders: socket.socket, requests: int) -> None:
        self._settings = settings
        self._orders = orders
        self._requests = requests
        """Where requests to init are sent: handed to visitors who join."""
        self._created = time.time()
        self._deadline = time.monotonic() + settings.lifetime
        self._kept = False
        self._removed = False
        self._visitors: Visitors | None = None
        self._locks: list[int] = []
        self._groups = cgroups.ControlGroups()
        self._watchdog = Watchdog(None, None)
        self._init = 0
        self._uid: int | None = None

    def build(self, requests: socket.socket) -> None:
        """Build the sandbox and report it ready. ``OSError`` or ``LaunchError`` where that fails."""
        settings = self._settings
        self._prepare_self()
        candidates = identity.own_range()
        if candidates:
            self._uid = identity.reserve(settings.user_ids, candidates)
        self._make_directories()
        limits = cgroups.Limits(settings.memory, settings.processes + MARGIN, settings.cpus)
        self._groups = cgroups.create(settings.name, limits, remains.note(settings.directory))
        self._try_groups()
        self._choose_limits()
        self._init, limitations, listener = launch(settings, requests, self._groups, self._uid)
        requests.close()
        if settings.namespaces:
            os.rmdir(os.path.join(settings.root, ".old"))
        self.tell(
            {
                "ready": True,
                "home": settings.home,
                "scratch": settings.scratch,
                "working_directory": settings.working_directory,
                "limitations": limitations + self._limitations(),
                "bounds": sorted(self._groups.bounds),
            },
            listener,
        )

    def watch(self) -> None:
        """Serve until there is a reason to end."""
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # not before: it would make our children's /proc files root's
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps whatever becomes our child
        init = os.pidfd_open(self._init)
        framework = os.pidfd_open(self._settings.framework)
        orders = self._orders.fileno()
        self._visitors = Visitors(self._settings.directory)
        poll = select.poll()
        for descriptor in (init, framework, orders, self._visitors.door):
            poll.register(descriptor, select.POLLIN)
        reason = ""
        while not reason:
            remaining = self._deadline - time.monotonic()
            interval = remaining if self._watchdog.idle else min(remaining, INTERVAL)
            ready = {descriptor for descriptor, _ in poll.poll(max(0, min(interval, 3600)) * 1000)}
            hung_up = orders in ready and not self._serve(self._orders)
            if init in ready:
                reason = "init"
            elif (hung_up or framework in ready) and not self._kept:
                reason = "framework"
            elif remaining <= 0:
                reason = "lifetime"
            for descriptor in ready.intersection({framework, orders}) if self._kept else ():
                poll.unregister(descriptor)
            self._receive_visitors(poll, ready - {init, framework, orders})
            if self._removed:
                reason = reason or "removed"
            self._watchdog.look(self._init)
        self.tell(
            {"ended": reason, "memory_kills": self._groups.out_of_memory_kills() + self._watchdog.kills}
        )

    def tear_down(self) -> None:
        """Kill everything that is left and remove everything that was made."""
        if self._init:
            processes.send_signal(self._init, signal.SIGKILL)
        processes.kill_below(os.getpid())
        while self._reap_misses_one():
            processes.kill_below(os.getpid())
        self._groups.remove()
        remains.remove(self._settings.directory)

    def tell(self, header: dict[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Send the framework a message, if it is still there. Descriptors go with it and are closed."""
        attached = [*descriptors]
        try:
            wire.send(self._orders, header, descriptors=tuple(attached))
        except OSError:  # it is gone or no longer listens; we end all the same
            return
        finally:
            wire.close_all(attached)

    def _prepare_self(self) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.leave_session_keyring()
        os.chdir("/")
        os.umask(0o022)
        if os.geteuid() == 0:
            os.setgroups([])

    def _make_directories(self) -> None:
        settings = self._settings
        uid = self._uid if self._uid is not None else os.getuid()
        gid = self._uid if self._uid is not None else os.getgid()
        os.mkdir(settings.directory, 0o711)
        if settings.namespaces:
            root_view.prepare(settings.root, uid, gid, public_network=settings.network)
            return
        for path in (settings.home, settings.temporary, settings.scratch):
            os.mkdir(path, 0o700)
            os.chown(path, uid, gid)

    def _try_groups(self) -> None:
        """See that the groups take processes."""
        probe = os.fork()
        if probe == 0:
            signal.pause()
        try:
            self._groups.add(probe)
        except OSError:  # we may make groups but not fill them; then they bound nothing
            self._groups.bounds.clear()
        finally:
            os.kill(probe, signal.SIGKILL)
            os.waitpid(probe, 0)
        if not self._groups.bounds:
            self._groups.remove()

    def _choose_limits(self) -> None:
        settings = self._settings
        version = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        exact = self._uid is not None or (settings.namespaces and version >= _COUNTED_PER_NAMESPACE)
        # Else the kernel counts all processes of our user: only a wall against what grows faster
        # than the watchdog looks, far enough away that other sandboxes are not in its way.
        settings.process_limit = (
            settings.processes if exact else 4 * settings.processes + processes.count(os.getuid())
        )
        settings.limit_data = "memory" not in self._groups.bounds
        bounded = exact or "pids" in self._groups.bounds
        self._watchdog = Watchdog(
            settings.memory if settings.limit_data else None, None if bounded else settings.processes
        )

    def _limitations(self) -> list[str]:
        found = ["the size of its files is not limited"]
        if "memory" not in self._groups.bounds:
            found.append("memory is bounded by a watchdog, not by the kernel")
        if "cpu" not in self._groups.bounds:
            found.append("processor time is shared with the host without a limit")
        return found

    def _receive_visitors(self, poll: select.poll, ready: set[int]) -> None:
        assert self._visitors is not None
        for descriptor in ready:
            visitor = self._visitors.get(descriptor)
            if descriptor == self._visitors.door:
                if (admitted := self._visitors.admit()) is not None:
                    poll.register(admitted, select.POLLIN)
            elif visitor is not None and not self._serve(visitor):
                poll.unregister(descriptor)
                self._visitors.dismiss(descriptor)

    def _serve(self, orders: socket.socket) -> bool:
        """Carry out one order. False when nothing more comes from there."""
        try:
            message = wire.receive(orders)
        except (OSError, wire.ProtocolError):
            return False
        if message is None or message.header.get("op") == "close":
            return False
        left, operation = 0, message.header["op"]
        if operation == "kill":
            left = self._kill_job(f"job-{message.header['job']}")
        elif operation == "wake":
            left = self._wake(f"job-{message.header['job']}")
        elif operation == "kill_all":
            left = processes.kill_below(self._init)
        elif operation == "crowded":
            left = int(self._was_crowded())
        elif operation == "keep":
            self._kept, self._deadline = True, time.monotonic() + message.header["seconds"]
            self._locks += message.descriptors  # held as long as we live
        elif operation == "end":
            self._removed = True
        answer = {"done": message.header["id"], "left": left}
        if operation == "join":
            answer |= self._description()
        try:
            wire.send(orders, answer, descriptors=(self._requests,) if operation == "join" else ())
        except OSError:  # it is gone or no longer listens
            return False
        return True

    def _description(self) -> dict[str, Any]:
        """What visitors want to know."""
        settings = self._settings
        return {
            "name": settings.name,
            "rung": settings.rung,
            "network": settings.network,
            "home": settings.home,
            "scratch": settings.scratch,
            "working_directory": settings.working_directory,
            "created": self._created,
            "deadline": time.time() + self._deadline - time.monotonic(),
            "kept": self._kept,
            "framework": settings.framework,
        }

    def _kill_job(self, name: str) -> int:
        left = 0
        for supervisor in self._supervisors(name):
            processes.send_signal(supervisor, signal.SIGCONT)
            # It may be about to start its command, which we then kill, or to see that nobody wants it.
            deadline = time.monotonic() + _STARTING_PATIENCE
            while not processes.children(supervisor) and processes.state(supervisor) not in "ZX":
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            left += processes.kill_below(supervisor)
        return left

    def _wake(self, name: str) -> int:
        """Let the processes of a job go on that something inside has stopped; how many there were."""
        stopped = [
            pid
            for pid in processes.children(self._init)
            if processes.name(pid) in (name, NAME) and processes.state(pid) == "T"
        ]
        for pid in stopped:
            processes.send_signal(pid, signal.SIGCONT)
        return len(stopped)

    def _was_crowded(self) -> bool:
        """Whether a process that the kernel refused may have been one too many of the sandbox's own."""
        most = self._groups.most_processes()
        if most is not None:
            return most >= self._settings.processes
        return 2 * sum(map(processes.threads, processes.descendants(self._init))) >= self._settings.processes

    def _supervisors(self, name: str) -> list[int]:
        return [pid for pid in processes.children(self._init) if processes.name(pid) == name]

    def _reap_misses_one(self) -> bool:
        """Reap what is dead; whether a child is still alive, as one stuck in the kernel is."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True
