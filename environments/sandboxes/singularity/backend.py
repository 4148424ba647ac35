"""The backend ``singularity``: makes sandboxes with Apptainer or Singularity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from environments.errors import ConfigError, ImageUnusable, NotSupported, SandboxError
from environments.open_files import limit_inside
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.egress import egress
from environments.sandboxes.egress.joining import listen_in_network_of
from environments.sandboxes.remote_shell.attention import Attention
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.remote_shell.program import new_family, process_limit, quote
from environments.sandboxes.remote_shell.sandbox import Place, RemoteSandbox
from environments.sandboxes.singularity import holdings
from environments.sandboxes.singularity.deadlines import Deadlines
from environments.sandboxes.singularity.engine import Engine, Instance
from environments.sandboxes.singularity.holdings import Note
from environments.sandboxes.singularity.images import Images
from environments.sandboxes.singularity.instance import InstanceMachine
from environments.sandboxes.singularity.options import SMALLEST_DISK_MB, Features, Limits, start_arguments
from environments.sandboxes.singularity.run_directory import RunDirectory

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

_DEFAULT_MEMORY_MB = 4096
_DEFAULT_PROCESSES = 512
_SCRATCH = "/tmp/.hermes-scratch"
_FIRST_TO_GO = "{ echo 600 >/proc/self/oom_score_adj; } 2>/dev/null"
"""Where memory runs out, commands are to end, and neither the instance's init nor what the engine starts
them by. Without it the kernel chooses any of them where memory is held by files and not by processes."""
_FORGET = (
    "unset LD_LIBRARY_PATH PS1 PROMPT_COMMAND USER_PATH OLDPWD APPTAINER_COMMAND APPTAINER_APPNAME "
    "APPTAINER_BIND APPTAINER_ENVIRONMENT SINGULARITY_BIND SINGULARITY_ENVIRONMENT"
)
"""Variables by which the engine talks to its own scripts; they would only mislead commands."""

_LOOK_AROUND = """{{
w={wanted}
h=${{HOME:-/}}
case $w in /*) ;; "~"|"~/"*) w=$h${{w#"~"}} ;; *) w=$h${{w:+/$w}} ;; esac
mkdir -p -- "$h" "$w" && mkdir -p -m 700 {scratch} && cd "$w" || exit 1
u=$(id -un 2>/dev/null) || u=$(id -u)
printf '%s\\n' "$h" "$u" "$w"
}}"""
"""Prints home, user and working directory inside, and makes what is missing of them."""


class SingularityBackend(Backend):
    """Sandboxes as instances, each with a writable layer, limits and process table of its own."""

    name = "singularity"
    capabilities = Capabilities(
        images=True,
        network_modes=frozenset({"none", "public", "allow-list"}),
        resources=frozenset({"cpus", "memory_mb", "processes", "storage_mb"}),
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        self._config = config
        self._run_id = run_id
        self._creating = asyncio.Semaphore(config.sandbox_creation_concurrency)
        self._checking = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._engine: Engine | None = None
        self._directory: RunDirectory | None = None
        self._images: Images | None = None
        self._features = Features.first_guess()
        self._probed = False
        self._deadlines = Deadlines()
        self._live: set[RemoteSandbox] = set()
        self._closed = False

    async def check(self) -> None:
        """Find the engine, remove what dead runs left, try the default image where there is one.

        ``ConfigError`` with the cure where that cannot work.
        """
        await self._begin()
        if self._config.singularity_image is not None:
            try:
                sandbox = await self.create(SandboxSpec())
            except ImageUnusable as error:
                raise ConfigError(f"env.singularity_image: {error}") from error
            except NotSupported:
                raise
            except SandboxError as error:
                raise ConfigError(f"env.singularity_image: {error}") from error
            await sandbox.close()

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what this backend lacks."""
        image = spec.image or self._config.singularity_image
        if image is None:
            raise NotSupported(
                "the task names no image for the singularity backend: set --env.singularity_image"
            )
        _refuse_unsupported(spec)
        _, _, images = await self._begin()
        path = await images.ready(image)
        async with self._creating:
            instance, family, directory = await self._start(spec, path)
            return await self._enter(spec, image, instance, family, directory)

    async def close(self) -> None:
        """Release all sandboxes that still live, and the run's directory."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        await self._deadlines.close()
        if self._directory is not None and self._engine is not None:
            if await asyncio.to_thread(holdings.has_one, self._directory.path):
                await asyncio.to_thread(self._directory.leave)
                await holdings.reap(self._engine)
            else:
                await asyncio.to_thread(self._directory.remove)

    async def survey(self) -> list[SandboxEntry]:
        """Every instance of this user that a run of ours made."""
        return await asyncio.to_thread(holdings.entries, await Engine.find().instances())

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """End instances of any run; those that are left."""
        engine = Engine.find()
        ended = [await holdings.end(engine, entry.id, Path(entry.handle)) for entry in entries]
        return [entry for entry, gone in zip(entries, ended, strict=True) if not gone]

    async def reap(self) -> list[SandboxEntry]:
        """Remove what dead runs left, directories without an instance included."""
        removed = await super().reap()
        await holdings.reap(Engine.find())
        return removed

    async def attach(self, entry: SandboxEntry) -> RemoteSandbox:
        """Join an instance that another process started."""
        engine, directory = Engine.find(), Path(entry.handle)
        note = await asyncio.to_thread(Note.read, directory)
        found = await engine.instances(entry.id)
        if note is None or not found:
            raise SandboxError(f"the instance {entry.id} is gone")
        self._features = features = Features(**note.features)
        machine = InstanceMachine(engine, features, found[0], note.family, directory)
        spec = SandboxSpec(working_directory=note.working_directory)
        place = await self._place(machine, spec, note.family)
        info = SandboxInfo(self.name, "container", note.network, entry.id)
        return RemoteSandbox(machine, info, place)

    async def _begin(self) -> tuple[Engine, RunDirectory, Images]:
        async with self._checking:
            if self._closed:
                raise SandboxError("the backend is closed")
            if self._engine is None or self._directory is None or self._images is None:
                self._engine = Engine.find()
                await holdings.reap(self._engine)
                self._directory = await asyncio.to_thread(RunDirectory, self._run_id)
                self._images = Images(self._engine, self._directory.path / "images")
            return self._engine, self._directory, self._images

    async def _start(self, spec: SandboxSpec, image: str) -> tuple[Instance, str, Path]:
        """Start an instance; the first one finds out what works here."""
        if self._probed:
            return await self._start_with(self._features, spec, image)
        async with self._probing:
            while not self._probed:
                try:
                    started = await self._start_with(self._features, spec, image)
                except SandboxError as error:
                    self._features = self._features.without_cause(error)
                    logger.info("trying without: %s", error)
                else:
                    self._probed = True
                    return started
        return await self._start_with(self._features, spec, image)

    async def _start_with(
        self, features: Features, spec: SandboxSpec, image: str
    ) -> tuple[Instance, str, Path]:
        engine, run, _ = await self._begin()
        family = new_family()
        name = f"{run.name}-{family}"
        directory = run.path / name
        await asyncio.to_thread(_make_directories, directory)
        try:
            arguments = start_arguments(
                features,
                image=image,
                name=name,
                overlay=await self._overlay(engine, features, directory, spec.resources.storage_mb),
                network=spec.network.mode == "public",
                limits=self._limits(spec),
            )
            await engine.run(arguments)
            found = await engine.instances(name)
            if not found:
                raise SandboxError(f"instance {name} ended at once")
        except BaseException:  # cancelled, too: no instance is left
            await asyncio.shield(asyncio.ensure_future(holdings.end(engine, name, directory)))
            raise
        return found[0], family, directory

    async def _overlay(
        self, engine: Engine, features: Features, directory: Path, storage_mb: int | None
    ) -> Path:
        """What takes the sandbox's files: a directory, or a file system of its own where disk is limited."""
        if storage_mb is None or not (features.overlay and features.disk_images):
            return directory / "overlay"
        image = directory / "overlay.img"
        size = str(max(storage_mb, SMALLEST_DISK_MB))
        try:
            await engine.run(["overlay", "create", "--sparse", "--size", size, str(image)])
        except SandboxError as error:
            logger.info("disk space cannot be limited here: %s", error)
            self._features = replace(self._features, disk_images=False)
            return directory / "overlay"
        return image

    async def _enter(
        self, spec: SandboxSpec, image: str, instance: Instance, family: str, directory: Path
    ) -> RemoteSandbox:
        assert self._engine is not None
        machine = InstanceMachine(self._engine, self._features, instance, family, directory)
        try:
            await machine.end_after(spec.lifetime, self._deadlines)
            note = Note.of(family, self._features, spec.working_directory, spec.network.mode, spec.lifetime)
            await asyncio.to_thread(note.write, directory)
            if spec.network.mode == "allow-list":
                listener = await listen_in_network_of(instance.pid, egress.PORT)
                machine.proxy = egress.start(spec.network, listener)
            place = await self._place(machine, spec, family)
        except BaseException:  # cancelled, too: nobody else has the machine
            await machine.release()
            raise
        sandbox = RemoteSandbox(machine, self._info(spec, image, instance), place)
        machine.on_released = lambda: self._live.discard(sandbox)
        self._live.add(sandbox)
        if self._closed:
            await sandbox.close()
            raise SandboxError("the backend is closed")
        return sandbox

    async def _place(self, machine: InstanceMachine, spec: SandboxSpec, family: str) -> Place:
        home, user, working_directory = await _look_around(machine, spec.working_directory)
        machine.scratch = _SCRATCH
        return Place(
            family=family,
            home=home,
            working_directory=working_directory,
            scratch=_SCRATCH,
            user=user,
            environment={
                "HOME": home,
                "USER": user,
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                **egress.variables(spec.network),
                **spec.environment,
            },
            prelude=self._prelude(spec),
        )

    def _limits(self, spec: SandboxSpec) -> Limits:
        wanted, config = spec.resources, self._config
        return Limits(
            memory_mb=wanted.memory_mb or config.sandbox_memory_mb or _DEFAULT_MEMORY_MB,
            processes=wanted.processes or config.sandbox_processes or _DEFAULT_PROCESSES,
            cpus=wanted.cpus,
        )

    def _prelude(self, spec: SandboxSpec) -> str:
        lines = [_FIRST_TO_GO, _FORGET]
        if (files := limit_inside()) is not None:
            lines.append(f"ulimit -S -n {files} 2>/dev/null")
        if not self._features.control_groups:
            lines.append(process_limit(self._limits(spec).processes))
        return "\n".join(lines)

    def _info(self, spec: SandboxSpec, image: str, instance: Instance) -> SandboxInfo:
        limits = self._limits(spec)
        resources: dict[str, float] = {}
        if self._features.control_groups:
            resources = {"memory_mb": float(limits.memory_mb), "processes": float(limits.processes)}
            if limits.cpus is not None:
                resources["cpus"] = limits.cpus
        limitations = [*self._features.limitations(), *egress.limitations(spec.network)]
        if spec.resources.storage_mb is not None and self._features.overlay and self._features.disk_images:
            resources["storage_mb"] = float(max(spec.resources.storage_mb, SMALLEST_DISK_MB))
        else:
            limitations.append("disk space is not limited")
        if spec.network.mode == "public":
            limitations.append("the network is the host's, its loopback included")
        return SandboxInfo(
            backend=self.name,
            isolation="container" if self._features.root else "container (unprivileged)",
            network=spec.network.mode,
            id=instance.name,
            resources=resources,
            image=image,
            limitations=limitations,
        )


async def _look_around(machine: InstanceMachine, working_directory: str | None) -> tuple[str, str, str]:
    """Home, user and working directory inside."""
    output = WholeOutput()
    attention = Attention(machine, output.receive)
    program = _LOOK_AROUND.format(wanted=quote(working_directory or ""), scratch=_SCRATCH)
    channel = await machine.open(program.encode("utf-8", "surrogateescape"), attention.receive)
    try:
        ended = await attention.until(channel, channel.wait())
    finally:
        channel.close()
    lines = output.stdout.decode("utf-8", "surrogateescape").splitlines()
    if ended.code or len(lines) != 3:
        text = output.stderr.decode("utf-8", "replace").strip()
        raise SandboxError(f"the image cannot be used: {text or f'exit code {ended.code}'}")
    return lines[0], lines[1], lines[2]


def _make_directories(directory: Path) -> None:
    directory.mkdir(0o700)
    (directory / "overlay").mkdir(0o755)


def _refuse_unsupported(spec: SandboxSpec) -> None:
    egress.check(spec.network)
    if spec.resources.gpus:
        raise NotSupported("the singularity backend gives no GPU to a sandbox")
