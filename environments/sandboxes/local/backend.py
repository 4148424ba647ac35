"""The backend ``local``: makes sandboxes on this machine."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.errors import MachineShortage, NotSupported, SandboxError
from environments.open_files import limit_inside
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.egress import egress
from environments.sandboxes.local import rungs, visiting
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.nursery import Nursery
from environments.sandboxes.local.run_directory import RunDirectory, reap
from environments.sandboxes.local.sandbox import LocalSandbox
from environments.sandboxes.local.shortage import shortage_is_ours, until_there_are_processes

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_DEFAULT_MEMORY_MB = 4096
_DEFAULT_PROCESSES = 512

_OWN_NETWORK = ("namespaces", "bubblewrap")
"""Isolations whose sandboxes have a network namespace."""

LEAST_SPACE = 1 << 20
"""Free bytes below which writing a small file may fail through no doing of who writes it."""


class LocalBackend(Backend):
    """Sandboxes on this machine, isolated by the strongest means that works on it."""

    name = "local"
    capabilities = Capabilities(
        images=False,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb", "processes"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        self._config = config
        self._run_id = run_id
        self._directory: RunDirectory | None = None
        self._creating = asyncio.Semaphore(config.sandbox_creation_concurrency)
        self._checking = asyncio.Lock()
        self._rung: str | None = None
        self._passed_over: list[str] = []
        self._bubblewrap: str | None = None
        self._live: set[LocalSandbox] = set()
        self._nursery = Nursery()
        self._kept = False
        """Whether a sandbox of this run lives on."""
        self._closed = False

    @property
    def isolation(self) -> str:
        """The isolation in force; known after ``check`` or the first ``create``."""
        if self._rung is None:
            raise SandboxError("the isolation is known after check()")
        return self._rung

    async def check(self) -> None:
        """Find the isolation to use by building a real sandbox with it.

        ``NotSupported`` where the one that ``local_isolation`` demands does not work here.
        """
        async with self._checking:
            if self._rung is not None:
                return
            if self._directory is None:
                self._directory = await asyncio.to_thread(RunDirectory, self._run_id)
            self._bubblewrap = rungs.find_bubblewrap()
            reasons: list[str] = []
            for rung in rungs.candidates(self._config.local_isolation):
                try:
                    await until_there_are_processes(functools.partial(self._probe, rung))
                except MachineShortage:  # says nothing of the isolation
                    raise
                except SandboxError as error:
                    reasons.append(f"{rung} isolation does not work here: {error}")
                    continue
                self._rung = rung
                self._passed_over = reasons
                return
            raise NotSupported("; ".join(reasons))

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what this backend lacks."""
        _refuse_unsupported(spec)
        await self.check()
        if spec.network.mode == "allow-list" and self.isolation not in _OWN_NETWORK:
            raise NotSupported(f"the isolation {self.isolation} cannot limit the network to a list of hosts")
        async with self._creating:
            sandbox = await until_there_are_processes(lambda: self._build(self.isolation, spec))
        self._kept = self._kept or any(other.kept for other in self._live)
        self._live = {other for other in self._live if not other.released} | {sandbox}
        return sandbox

    def trouble(self) -> str | None:
        """Whether the disk that holds the sandboxes is full: then what fails inside says nothing."""
        if self._directory is None:
            return None
        space = os.statvfs(self._directory.path)
        if space.f_bavail * space.f_frsize >= LEAST_SPACE:
            return None
        return (
            f"the disk that holds the sandboxes ({self._directory.path}) is full; make room, or name "
            "another with TMPDIR. The same command goes on from here"
        )

    async def close(self) -> None:
        """Release all sandboxes that still live, and the run's directory."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in self._live if not sandbox.released))
        await self._nursery.close()
        self._kept = self._kept or any(other.kept for other in self._live)
        self._live.clear()
        if self._directory is not None:
            leave = self._directory.leave if self._kept else self._directory.remove
            await asyncio.to_thread(leave)
            self._directory = None

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of this user on this machine."""
        return await asyncio.to_thread(visiting.find)

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """End sandboxes of any run; those that are left."""
        ended = await asyncio.gather(*(asyncio.to_thread(visiting.end, entry) for entry in entries))
        return [entry for entry, gone in zip(entries, ended, strict=True) if not gone]

    async def reap(self) -> list[SandboxEntry]:
        """Remove what dead runs left, directories without a sandbox included."""
        removed = await super().reap()
        await asyncio.to_thread(reap)
        return removed

    async def attach(self, entry: SandboxEntry) -> LocalSandbox:
        """Join a sandbox that another process made."""
        return await visiting.join(entry)

    async def _probe(self, rung: str) -> None:
        sandbox = await self._build(rung, SandboxSpec(lifetime=60))
        try:
            result = await sandbox.exec("echo $((6 * 7))", timeout=30)
            if result.stdout != b"42\n":
                raise SandboxError(result.stderr.decode("utf-8", "replace") or "a command printed nothing")
        finally:
            await sandbox.close()

    async def _build(self, rung: str, spec: SandboxSpec) -> LocalSandbox:
        if self._closed or self._directory is None:
            raise SandboxError("the backend is closed")
        settings = self._settings(rung, spec)
        directory = self._directory
        with shortage_is_ours():
            guard = Guard(settings, lambda: (directory.lock,))
        try:
            with shortage_is_ours():
                report = await guard.start(self._nursery)
        except BaseException:  # cancelled, too: nothing half-made stays
            await guard.close()
            raise
        if self._closed:
            await guard.close()
            raise SandboxError("the backend is closed")
        proxy = None if guard.listener is None else egress.start(spec.network, guard.listener)
        return LocalSandbox(guard, self._info(rung, spec, settings, report), report, proxy)

    def _settings(self, rung: str, spec: SandboxSpec) -> dict[str, Any]:
        assert self._directory is not None
        name = f"{self._directory.path.name}-{secrets.token_hex(4)}"
        memory_mb = spec.resources.memory_mb or self._config.sandbox_memory_mb or _DEFAULT_MEMORY_MB
        return {
            "rung": rung,
            "name": f"hermes-{name}",
            "directory": str(self._directory.path / name.rpartition("-")[2]),
            "user_ids": str(self._directory.user_ids),
            "memory": memory_mb * 1024 * 1024,
            "processes": spec.resources.processes or self._config.sandbox_processes or _DEFAULT_PROCESSES,
            "cpus": spec.resources.cpus,
            "network": spec.network.mode == "public",
            "proxy_port": egress.PORT if spec.network.mode == "allow-list" else None,
            "lifetime": spec.lifetime,
            "bubblewrap": self._bubblewrap,
            "environment": {**egress.variables(spec.network), **spec.environment},
            "working_directory": spec.working_directory,
            "open_files": limit_inside(),
        }

    def _info(
        self, rung: str, spec: SandboxSpec, settings: dict[str, Any], report: dict[str, Any]
    ) -> SandboxInfo:
        resources = {
            "memory_mb": float(settings["memory"] >> 20),
            "processes": float(settings["processes"]),
        }
        if spec.resources.cpus is not None and "cpu" in report["bounds"]:
            resources["cpus"] = spec.resources.cpus
        return SandboxInfo(
            backend=self.name,
            isolation=rung,
            network=spec.network.mode if rung != "none" else "public",
            id=settings["name"],
            resources=resources,
            limitations=[*self._passed_over, *report["limitations"], *egress.limitations(spec.network)],
        )


def _refuse_unsupported(spec: SandboxSpec) -> None:
    if spec.image is not None:
        raise NotSupported(f"the local backend runs no images, and the task needs {spec.image!r}")
    egress.check(spec.network)
    if spec.resources.gpus:
        raise NotSupported("the local backend gives no GPU to a sandbox")
