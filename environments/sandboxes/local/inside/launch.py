"""Starting the init process of a sandbox inside its isolation.

``launch`` runs in the guardian. Its child enters the isolation and, with namespaces, forks the
init process, since a process cannot itself enter a new process namespace. The two sides take
turns over a socket, so that groups and user mappings are in place before anything runs.
"""

from __future__ import annotations

import errno
import os
import resource
import socket

from . import init, kernel, landlock, listening, namespaces, root_view, seccomp, wire
from .cgroups import ControlGroups
from .identity import become
from .settings import MARGIN, Settings

_PATIENCE = 30.0


class LaunchError(Exception):
    """The isolation cannot be built on this machine; the text says why."""


def launch(
    settings: Settings, requests: socket.socket, groups: ControlGroups, uid: int | None
) -> tuple[int, list[str], list[int]]:
    """Start the init process. Returns its number, what this isolation cannot do, and the descriptor
    of a socket that listens in its network, where one was asked for.

    ``uid`` is the host's user it becomes, None for our own.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    helper, user_namespace = None, None
    if settings.rung == "bubblewrap":
        if settings.bubblewrap is None:
            raise LaunchError("there is no bwrap: install bubblewrap, or the extra 'bwrap'")
        user_namespace, helper = namespaces.from_bubblewrap(settings.bubblewrap, uid)
    child = os.fork()
    if child == 0:
        _close_all_but({0, 1, 2, requests.fileno(), theirs.fileno(), user_namespace})
        _run_child(_Child(settings, requests, theirs, uid), user_namespace)
    theirs.close()
    ours.settimeout(_PATIENCE)
    try:
        return _converse(ours, settings, groups, uid, child)
    finally:
        ours.close()
        if helper is not None:
            os.kill(helper, 9)
            os.waitpid(helper, 0)
            os.close(user_namespace or 0)


def _converse(
    ours: socket.socket, settings: Settings, groups: ControlGroups, uid: int | None, child: int
) -> tuple[int, list[str], list[int]]:
    init_pid = child
    groups.add(child)
    wire.send(ours, {"go": True})
    while True:
        message = wire.receive(ours)
        if message is None:
            raise LaunchError("the process that enters the sandbox died")
        header = message.header
        if "error" in header:
            if "errno" in header:
                raise OSError(header["errno"], header["error"])
            raise LaunchError(header["error"])
        if "map" in header:
            namespaces.map_one_user(child, uid if uid is not None else os.getuid(), uid or os.getgid())
        elif "init" in header:
            init_pid = header["init"]
            os.waitpid(child, 0)
        elif "ready" in header:
            return init_pid, header["limitations"], message.descriptors
        wire.send(ours, {"go": True})


def _run_child(child: _Child, user_namespace: int | None) -> None:
    status = 1
    try:
        child.run(user_namespace)
        status = 0
    except OSError as error:
        child.say({"error": error.strerror or str(error), "errno": error.errno or errno.EIO})
    except LaunchError as error:
        child.say({"error": str(error)})
    finally:
        os._exit(status)


def _close_all_but(kept: set[int | None]) -> None:
    """Close what is the guardian's: the framework's orders, locks, the other end of our own socket."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:  # the one that the list was read from
                continue


class _Child:
    """What becomes the init process. Every step may raise ``OSError``."""

    def __init__(
        self, settings: Settings, requests: socket.socket, guardian: socket.socket, uid: int | None
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._guardian = guardian
        self._uid = uid

    def run(self, user_namespace: int | None) -> None:
        """Enter, report, serve."""
        self._wait()
        os.setsid()
        if self._settings.namespaces:
            namespaces.enter(
                user_namespace, network=self._settings.network, map_user=lambda: self._ask({"map": True})
            )
            child = os.fork()
            if child:
                self.say({"init": child})
                return
            self._wait()
            limitations = self._become_root_of_namespaces()
        elif self._settings.rung == "landlock":
            limitations = self._enter_landlock()
        else:
            limitations = self._become_plain_process()
        self._finish(limitations)

    def say(self, header: dict[str, object], descriptors: tuple[int, ...] = ()) -> None:
        """Tell the guardian something."""
        wire.send(self._guardian, header, descriptors=descriptors)

    def _finish(self, limitations: list[str]) -> None:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.die_with_parent()
        self._bound_processes()
        os.makedirs(self._settings.working_directory, 0o755, exist_ok=True)
        os.chdir(self._settings.working_directory)
        self._report_ready(limitations)
        self._guardian.close()
        init.serve(self._requests, self._settings)

    def _report_ready(self, limitations: list[str]) -> None:
        """Nothing of the listening socket stays here: who holds it serves it."""
        header: dict[str, object] = {"ready": True, "limitations": limitations}
        if self._settings.proxy_port is None:
            self.say(header)
            return
        with listening.open_listener(self._settings.proxy_port) as listener:
            self.say(header, (listener.fileno(),))

    def _become_root_of_namespaces(self) -> list[str]:
        settings = self._settings
        root_view.mount_all(settings.root, settings.memory // 2 if not settings.limit_data else 64 << 20)
        root_view.forbid_namespaces()
        root_view.finish_proc()
        socket.sethostname("sandbox")
        if not settings.network:
            kernel.bring_loopback_up()
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        limitations = self._filter(seccomp.ANY_SOCKET)
        if settings.network:
            limitations.append("the network is the host's, its loopback included")
        return limitations

    def _become_plain_process(self) -> list[str]:
        if self._uid is None:
            return ["no isolation: commands run as plain processes of the framework's user"]
        become(self._uid)
        return ["no isolation: commands see the host's files, processes and network, as a user of their own"]

    def _enter_landlock(self) -> list[str]:
        settings = self._settings
        if self._uid is not None:
            become(self._uid)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        version = landlock.restrict(_visible(settings))
        families = set(seccomp.UNIX_SOCKET) if self._uid is not None else set()
        if settings.network:
            families |= seccomp.INTERNET_SOCKET
        seccomp.install(frozenset(families), protected=os.getpid(), from_signals=True)
        limitations = [
            f"files outside {settings.directory} cannot be made, so paths such as /app do not work",
            "there is no /proc and no /dev/shm of its own, so ps and process substitution do not work",
        ]
        if not settings.network:
            limitations.append("there is no network at all, not even the loopback")
        if version < 6 and self._uid is None:
            limitations.append("commands can send signals to other processes of the framework's user")
        return limitations

    def _filter(self, families: frozenset[int] | None) -> list[str]:
        try:
            seccomp.install(families, protected=os.getpid())
        except OSError as error:  # a further barrier, not the one that isolation rests on
            return [f"system calls are not filtered: {error.strerror}"]
        return []

    def _bound_processes(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        wanted = self._settings.process_limit + MARGIN
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))

    def _ask(self, header: dict[str, object]) -> None:
        self.say(header)
        self._wait()

    def _wait(self) -> None:
        if wire.receive(self._guardian) is None:
            raise LaunchError("the guardian died")


def _visible(settings: Settings) -> list[tuple[str, int]]:
    """What a Landlock sandbox sees, with the rights it has there."""
    read_write = landlock.READ_FILE | landlock.WRITE_FILE
    rules = [("/" + name, landlock.READ) for name in root_view.SYSTEM_DIRECTORIES]
    names = [*root_view.system_settings(), "passwd", "group", "hosts", "nsswitch.conf", "host.conf"]
    if settings.network:
        names.append("resolv.conf")
    rules += [("/etc/" + name, landlock.READ) for name in names]
    rules += [(f"/dev/{name}", read_write) for name in ("null", "zero", "full", "random", "urandom", "tty")]
    rules += [
        (f"/proc/{name}", landlock.READ) for name in ("cpuinfo", "meminfo", "stat", "version", "filesystems")
    ]
    rules += [(settings.home, -1), (settings.temporary, -1), (settings.scratch, -1)]
    return rules
