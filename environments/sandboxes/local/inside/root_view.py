"""The file system that a sandbox with namespaces sees.

Its root is a directory on disk. The host's programs and libraries are bound into it read-only;
``/etc`` has only what ordinary programs need; ``/proc``, ``/dev`` and ``/tmp`` are its own.
``prepare`` makes the directories (outside, as the framework's user), ``mount_all`` the mounts (inside
the new namespaces, before anything is given up).
"""

from __future__ import annotations

import os

from . import kernel
from .identity import SANDBOX_UID

HOME = "/home/user"
SCRATCH = "/run/hermes"
_OLD_ROOT = ".old"

SYSTEM_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Programs and libraries of the host; links among them stay links."""

SYSTEM_SETTINGS = (
    "alternatives",
    "bash_completion.d",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "profile",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "xattr.conf",
)
"""Entries of ``/etc`` that hold no secrets and that ordinary programs read."""

_SYSTEM_SETTINGS_PREFIXES = ("java", "python3.", "ImageMagick")

_USER_DIRECTORIES = ("home/user", "mnt", "opt", "run", "run/hermes", "srv", "var/log", "var/cache", "var/lib")
_SHARED_DIRECTORIES = ("tmp", "var/tmp")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "asound", "acpi", "scsi")
_HIDDEN_PROC = ("kcore", "keys", "key-users", "timer_list", "sched_debug", "kallsyms", "kmsg", "vmallocinfo")

_LOCKED = ((2, kernel.MS_NOSUID), (4, kernel.MS_NODEV), (8, kernel.MS_NOEXEC))
_LOCKED_TIMES = ((1024, 1024), (2048, 2048), (4096, 1 << 21))  # noatime, nodiratime, relatime


def prepare(root: str, uid: int, gid: int, *, public_network: bool) -> None:
    """Make the directory tree that the mounts are hung into; the sandbox's user is ``uid`` outside."""
    os.mkdir(root)
    os.chmod(root, 0o1777)
    for name in ("etc", "var", "home", "root", "proc", "dev", _OLD_ROOT):
        os.mkdir(os.path.join(root, name), 0o755)
    for name in _USER_DIRECTORIES:
        path = os.path.join(root, name)
        os.mkdir(path, 0o755)
        os.chown(path, uid, gid)
    for name in _SHARED_DIRECTORIES:
        os.mkdir(os.path.join(root, name))
        os.chmod(os.path.join(root, name), 0o1777)
    for name in SYSTEM_DIRECTORIES:
        _prepare_entry("/" + name, os.path.join(root, name))
    for name in system_settings():
        os.makedirs(os.path.dirname(os.path.join(root, "etc", name)), 0o755, exist_ok=True)
        _prepare_entry("/etc/" + name, os.path.join(root, "etc", name))
    _write_settings(os.path.join(root, "etc"), public_network)


def system_settings() -> list[str]:
    """Entries of the host's ``/etc`` to be shown, those that exist."""
    names = [name for name in SYSTEM_SETTINGS if os.path.lexists("/etc/" + name)]
    names += [name for name in os.listdir("/etc") if name.startswith(_SYSTEM_SETTINGS_PREFIXES)]
    return names


def mount_all(root: str, shared_memory: int) -> None:
    """Build the view at ``root`` and make it the root of this mount namespace.

    Runs with all capabilities of the new user namespace, before the user is changed.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    os.chdir(root)
    kernel.mount(".", root, None, kernel.MS_BIND | kernel.MS_REC)
    os.chdir(root)
    entries = [*SYSTEM_DIRECTORIES, *(f"etc/{name}" for name in system_settings())]
    for name in entries:
        if os.path.exists(name) and not os.path.islink(name):
            kernel.mount(os.path.realpath("/" + name), name, None, kernel.MS_BIND | kernel.MS_REC)
    _make_read_only({os.path.join(root, name) for name in entries})
    kernel.pivot_root(".", _OLD_ROOT)
    os.chdir("/")
    _set_flags("/", kernel.MS_NOSUID | kernel.MS_NODEV)
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    _mount_proc()
    _mount_devices(shared_memory)
    kernel.unmount("/" + _OLD_ROOT)


def forbid_namespaces() -> None:
    """Let nobody in this user namespace make others; a kernel that cannot is no error."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    except OSError:  # a further barrier, not the one that isolation rests on
        return


def finish_proc() -> None:
    """Make the kernel's settings in ``/proc`` read-only and hide what shows the machine's inside."""
    for name in _READ_ONLY_PROC:
        path = "/proc/" + name
        if os.path.exists(path):
            kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
            _set_flags(path, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    for name in _HIDDEN_PROC:
        path = "/proc/" + name
        if os.path.exists(path):
            kernel.mount("/dev/null", path, None, kernel.MS_BIND)


def _prepare_entry(source: str, target: str) -> None:
    """Make ``target`` a place to bind ``source`` to, or the same link where it leads below /usr."""
    if not os.path.exists(source):
        return
    if os.path.islink(source):
        leads_to = os.readlink(source)
        absolute = os.path.normpath(os.path.join(os.path.dirname(source), leads_to))
        if absolute == "/usr" or absolute.startswith("/usr/"):
            os.symlink(leads_to, target)
            return
    if os.path.isdir(source):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _write_settings(etc: str, public_network: bool) -> None:
    texts = {
        "passwd": (
            "root:x:0:0:root:/root:/bin/sh\n"
            f"user:x:{SANDBOX_UID}:{SANDBOX_UID}:user:{HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
        ),
        "group": f"root:x:0:\ntty:x:5:\nuser:x:{SANDBOX_UID}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
        "hostname": "sandbox\n",
        "nsswitch.conf": (
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
            "protocols: files\nservices: files\nethers: files\nrpc: files\n"
        ),
        "host.conf": "multi on\n",
    }
    for name, text in texts.items():
        with open(os.path.join(etc, name), "w") as file:
            file.write(text)
    if public_network and os.path.exists("/etc/resolv.conf"):
        with open("/etc/resolv.conf", "rb") as source, open(os.path.join(etc, "resolv.conf"), "wb") as copy:
            copy.write(source.read())
    os.symlink("/proc/self/mounts", os.path.join(etc, "mtab"))


def _mount_proc() -> None:
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def _mount_devices(shared_memory: int) -> None:
    safe = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("tmpfs", "/dev", "tmpfs", safe, "mode=0755,size=1m,nr_inodes=1k")
    for name in _DEVICES:
        if not os.path.exists(f"/{_OLD_ROOT}/dev/{name}"):
            continue
        os.close(os.open("/dev/" + name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        kernel.mount(f"/{_OLD_ROOT}/dev/{name}", "/dev/" + name, None, kernel.MS_BIND)
    for name in ("pts", "shm"):
        os.mkdir("/dev/" + name)
    kernel.mount("devpts", "/dev/pts", "devpts", safe, "newinstance,ptmxmode=0666,mode=0620")
    options = f"mode=1777,size={shared_memory},nr_inodes=100k"
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0"}
    links |= {"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
    for name, target in links.items():
        os.symlink(target, "/dev/" + name)
    kernel.mount("none", "/dev", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | safe)


def _make_read_only(tops: set[str]) -> None:
    """Make the mounts at ``tops`` read-only, with all mounts below them."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [os.fsdecode(_unescape(line.split()[4])) for line in file]
    for point in points:
        if any(point == top or point.startswith(top + "/") for top in tops):
            try:
                _set_flags(point, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)
            except FileNotFoundError:  # hidden under another mount, so nobody can reach it
                continue


def _set_flags(point: str, flags: int) -> None:
    """Add mount flags; those that are set already are kept, as the kernel demands."""
    present = os.statvfs(point).f_flag
    for bit, flag in (*_LOCKED, *_LOCKED_TIMES, (1, kernel.MS_RDONLY)):
        if present & bit:
            flags |= flag
    kernel.mount("none", point, None, kernel.MS_REMOUNT | kernel.MS_BIND | flags)


def _unescape(text: bytes) -> bytes:
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        text = text.replace(code, byte)
    return text
