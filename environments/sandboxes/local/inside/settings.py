"""What the framework tells the guardian about the sandbox to build."""

from __future__ import annotations

import os
from typing import Any

from . import root_view

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

MARGIN = 64
"""Processes that our own supervisors may have beyond the sandbox's limit."""


class Settings:
    """Plain values, read once from the first message."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.rung: str = values["rung"]
        self.name: str = values["name"]
        self.directory: str = values["directory"]
        self.memory: int = values["memory"]
        self.processes: int = values["processes"]
        self.cpus: float | None = values["cpus"]
        self.network: bool = values["network"]
        self.proxy_port: int | None = values["proxy_port"]
        """Port inside where a socket listens for the framework's proxy, the only way out."""
        self.lifetime: float = values["lifetime"]
        self.framework: int = values["framework"]
        self.bubblewrap: str | None = values["bubblewrap"]
        self.user_ids: str = values["user_ids"]
        self.environment: dict[str, str] = values["environment"]
        self._working_directory: str | None = values["working_directory"]
        self.open_files: int | None = values["open_files"]
        """RLIMIT_NOFILE of commands, the soft one; None where they inherit the right one."""
        self.process_limit = self.processes
        """RLIMIT_NPROC of commands; more than ``processes`` where it counts those of others too."""
        self.limit_data = False
        """Whether RLIMIT_DATA must stand in for a control group; the guardian finds out."""

    @property
    def namespaces(self) -> bool:
        """Whether this rung has a root view of its own."""
        return self.rung in ("bubblewrap", "namespaces")

    @property
    def root(self) -> str:
        """The directory on the host that is the sandbox's root, with namespaces."""
        return os.path.join(self.directory, "root")

    @property
    def home(self) -> str:
        """Home directory as seen inside."""
        return root_view.HOME if self.namespaces else os.path.join(self.directory, "home")

    @property
    def scratch(self) -> str:
        """The framework's own directory as seen inside."""
        return root_view.SCRATCH if self.namespaces else os.path.join(self.directory, "scratch")

    @property
    def temporary(self) -> str:
        """Directory for temporary files as seen inside."""
        return "/tmp" if self.namespaces else os.path.join(self.directory, "tmp")

    @property
    def working_directory(self) -> str:
        """Where commands start as seen inside."""
        if self._working_directory is None:
            return self.home
        return self.resolve(self._working_directory, self.home)

    def resolve(self, path: str, start: str | None = None) -> str:
        """An absolute path: ``~`` is the home; others begin at ``start``, else the working directory."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return os.path.join(start or self.working_directory, path)

    def variables(self) -> dict[str, str]:
        """The environment every command begins with; nothing of the framework's is in it."""
        base = {
            "PATH": f"{PATH}:{self.home}/.local/bin",
            "HOME": self.home,
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        if not self.namespaces:
            base["TMPDIR"] = self.temporary
        return base | self.environment
