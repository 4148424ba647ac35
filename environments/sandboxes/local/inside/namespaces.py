"""Entering the namespaces of a sandbox: made by ourselves, or the user namespace by bubblewrap.

Two processes take part. The *guardian* stays outside; its child *enters*, then forks the init
process, which is number 1 of the new process namespace.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from . import kernel
from .identity import SANDBOX_UID, become


def enter(user_namespace: int | None, *, network: bool, map_user: Callable[[], None]) -> None:
    """Leave the host's namespaces; the next child is number 1 of a new process namespace.

    ``user_namespace`` is one to join, or None to make one, whose users ``map_user`` then maps.
    ``network`` says whether the host's network stays.
    """
    if user_namespace is None:
        kernel.unshare(kernel.CLONE_NEWUSER)
        map_user()
    else:
        kernel.setns(user_namespace, kernel.CLONE_NEWUSER)
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(flags if network else flags | kernel.CLONE_NEWNET)
    try:
        kernel.unshare(kernel.CLONE_NEWCGROUP)
    except OSError:  # hides the name of our control group, nothing that isolation rests on
        return


def map_one_user(pid: int | str, uid: int, gid: int) -> None:
    """Show the host's ``uid`` and ``gid`` inside as the sandbox's user; nobody else exists there."""
    if os.geteuid() != 0:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/gid_map", f"{SANDBOX_UID} {gid} 1")
    _write(f"/proc/{pid}/uid_map", f"{SANDBOX_UID} {uid} 1")


def from_bubblewrap(program: str, uid: int | None) -> tuple[int, int]:
    """Have ``bwrap`` make a user namespace. Returns its descriptor and the number of our child.

    ``uid`` is the user to run it as, None for our own. The child ends when the caller kills it;
    the namespace lives on in whoever joined it.
    """
    info_read, info_write = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        _exec_bubblewrap(program, uid, info_write, hold_read)
    os.close(info_write)
    os.close(hold_read)
    try:
        text = b""
        while b"}" not in text:
            part = os.read(info_read, 4096)
            if not part:
                raise OSError(f"{program} made no user namespace: {_last_words(child)}")
            text += part
        inner = json.loads(text)["child-pid"]
        _wait_for_mapping(inner)
        return os.open(f"/proc/{inner}/ns/user", os.O_RDONLY | os.O_CLOEXEC), child
    finally:
        os.close(info_read)
        os.close(hold_write)


def _exec_bubblewrap(program: str, uid: int | None, info: int, hold: int) -> None:
    try:
        if uid is not None:
            become(uid)
        kernel.die_with_parent()
        os.set_inheritable(info, True)
        os.set_inheritable(hold, True)
        user = str(SANDBOX_UID)
        arguments = ["bwrap", "--unshare-user", "--uid", user, "--gid", user, "--dev-bind", "/", "/"]
        arguments += ["--die-with-parent", "--info-fd", str(info), "--block-fd", str(hold), "true"]
        os.execve(program, arguments, {"PATH": "/usr/bin:/bin"})
    except OSError:
        os._exit(127)


def _last_words(child: int) -> str:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return "it cannot be run by the sandbox's user" if code == 127 else f"it ended with {code}"


def _wait_for_mapping(pid: int) -> None:
    """Wait until the process has mapped its user, which it does itself a moment after its start."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/uid_map", "rb") as file:
            if file.read():
                return
        time.sleep(0.001)
    raise OSError("bwrap did not map its user")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
