"""``patch``: change parts of files, by replacing a text or with a V4A patch."""

from __future__ import annotations

from dataclasses import dataclass, field

from environments.sandboxes.base import Sandbox
from environments.sandboxes.editing import LoadedFile
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.diffs import unified_diff
from environments.tools.edits import EditError, TextFile, replace_text
from environments.tools.paths import describe, not_found, resolve
from environments.tools.text import decode
from environments.tools.v4a import FilePatch, apply_hunks, parse_patch

NO_FILE = "/dev/null"

SIZE_LIMIT = 5_000_000
"""Bytes of all files of one call together, which are held whole, compared and searched. Source files
are far smaller; larger files are data, for which a program in the terminal is the better tool."""

DESCRIPTION = (
    "Edit files. mode=replace: replace old_string by new_string in path; old_string must fit exactly one "
    "place (or set replace_all). mode=patch: a V4A patch over one or more files in patch:\n"
    "*** Begin Patch\n*** Update File: path\n@@ line above, to tell places apart\n context line\n"
    "-old line\n+new line\n*** End Patch\n"
    "with also '*** Add File: path' (all lines with +), '*** Delete File: path' and '*** Move to: path'. "
    "Either everything is applied or nothing. Returns a diff."
)


@dataclass(slots=True)
class _File:
    """One path before and after the patch; None where there is no file."""

    before: bytes | None
    after: bytes | None
    mode: int | None = None


@dataclass(slots=True)
class _Plan:
    """Changes worked out but not yet made, so that all of them can be checked first."""

    sandbox: Sandbox
    files: dict[str, _File] = field(default_factory=dict)
    diffs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """Bytes of the files so far."""

    async def file(self, path: str) -> _File:
        """The file as earlier parts of the patch leave it."""
        if path not in self.files:
            loaded = await self._load(path)
            self._add(path, loaded)
        return self.files[path]

    async def follow(self, path: str) -> str:
        """Where a link leads, so that its file is changed and it stays; else the path itself."""
        if path in self.files:
            return path
        loaded = await self._load(path)
        path = loaded.path if loaded is not None else path
        if path not in self.files:
            self._add(path, loaded)
        return path

    def _add(self, path: str, loaded: LoadedFile | None) -> None:
        if loaded is None:
            self.files[path] = _File(None, None)
            return
        self.size += loaded.size
        if loaded.size > SIZE_LIMIT:
            reason = f"{path} is {loaded.size} bytes, more than the {SIZE_LIMIT} that patch takes"
            raise EditError(f"{reason}; change it in the terminal, for example with sed")
        if self.size > SIZE_LIMIT:
            raise EditError(f"the files are more than {SIZE_LIMIT} bytes together; use several patches")
        self.files[path] = _File(loaded.data, loaded.data, loaded.mode)

    async def _load(self, path: str) -> LoadedFile | None:
        try:
            return await self.sandbox.load(path, SIZE_LIMIT - self.size)
        except IsADirectoryError:
            raise EditError(f"{path} is a directory") from None
        except (FileNotFoundError, NotADirectoryError):
            return None

    async def existing(self, path: str) -> tuple[_File, bytes]:
        """A file that must be there, with its content."""
        file = await self.file(path)
        if file.after is None:
            raise EditError(await not_found(self.sandbox, path))
        return file, file.after

    def changed(self, before: bool, after: bool) -> list[str]:
        """Paths that changed and did or did not exist before and after."""
        return [
            path
            for path, file in self.files.items()
            if file.before != file.after
            and (file.before is not None) is before
            and (file.after is not None) is after
        ]


async def patch(
    state: ToolState,
    mode: str = "replace",
    path: str | None = None,
    old_string: str | None = None,
    new_string: str | None = None,
    replace_all: bool = False,
    patch: str | None = None,
) -> JSON:
    """Make an edit; ``success`` is false, and nothing was changed, where ``error`` is set."""
    plan = _Plan(state.sandbox)
    try:
        if mode == "patch":
            if not patch:
                raise ToolInputError("mode 'patch' needs the parameter patch, a text in V4A format")
            for part in parse_patch(patch):
                await _plan_part(plan, state, part)
        else:
            if path is None or old_string is None or new_string is None:
                raise ToolInputError("mode 'replace' needs path, old_string and new_string")
            await _plan_replacement(plan, state, path, old_string, new_string, replace_all)
        await _carry_out(plan)
    except EditError as error:
        return {"success": False, "error": str(error)}
    result: JSON = {
        "success": True,
        "diff": "".join(plan.diffs),
        "files_modified": plan.changed(True, True),
    }
    if mode == "patch":
        result["files_created"] = plan.changed(False, True)
        result["files_deleted"] = plan.changed(True, False)
    if plan.notes:
        result["note"] = "; ".join(plan.notes)
    return result


async def _plan_replacement(
    plan: _Plan, state: ToolState, path: str, old: str, new: str, replace_all: bool
) -> None:
    target = await plan.follow(resolve(state, path))
    file, data = await plan.existing(target)
    text_file = _text(target, data)
    text, count, note = replace_text(text_file.text, old, new, replace_all)
    if text == text_file.text:
        raise EditError("the edit changes nothing: the file has new_string there already")
    file.after = text_file.encode(text)
    plan.diffs.append(_diff(target, text_file.text, text))
    if count > 1:
        plan.notes.append(f"{count} places were replaced")
    if note is not None:
        plan.notes.append(note)


async def _plan_part(plan: _Plan, state: ToolState, part: FilePatch) -> None:
    path = resolve(state, part.path)
    if part.action == "add":
        file = await plan.file(path)
        if file.after is not None:
            raise EditError(f"{path} exists already; use '*** Update File: {part.path}'")
        text = "".join(line + "\n" for line in part.content)
        file.after = text.encode()
        plan.diffs.append(_diff(NO_FILE, "", text, path))
    elif part.action == "delete":
        file, data = await plan.existing(path)
        file.after = None
        plan.diffs.append(_diff(path, TextFile.decode(data).text, "", NO_FILE))
    else:
        await _plan_update(plan, state, part, path)


async def _plan_update(plan: _Plan, state: ToolState, part: FilePatch, path: str) -> None:
    if part.move_to is None:
        path = await plan.follow(path)
    file, data = await plan.existing(path)
    text, encoded, target = "", data, path
    if part.hunks:
        text_file = _text(path, data)
        text, notes = apply_hunks(text_file.text, part.hunks, path)
        encoded = text_file.encode(text)
        plan.notes += notes
    if part.move_to is not None:
        target = resolve(state, part.move_to)
        if target != path and (await plan.file(target)).after is not None:
            raise EditError(f"{path} cannot be moved: {target} exists already")
    elif encoded == data:
        raise EditError(f"the hunks of {path} change nothing: the file has the new lines there already")
    file.after = None if target != path else encoded
    moved = plan.files.setdefault(target, file)
    moved.after, moved.mode = encoded, file.mode
    before = TextFile.decode(data).text
    plan.diffs.append(_diff(path, before, text if part.hunks else before, target))


async def _carry_out(plan: _Plan) -> None:
    """Write first, delete last; whatever fails, what was done before it is undone."""
    changes = [(path, file) for path, file in plan.files.items() if file.before != file.after]
    changes.sort(key=lambda change: change[1].after is None)
    done: list[tuple[str, _File]] = []
    for path, file in changes:
        try:
            await _put(plan.sandbox, path, file.after, file.mode)
        except OSError as error:
            for other, undone in reversed(done):
                await _put(plan.sandbox, other, undone.before, undone.mode)
            raise EditError(f"{path} cannot be written ({describe(error)}); nothing was changed") from None
        done.append((path, file))


async def _put(sandbox: Sandbox, path: str, data: bytes | None, mode: int | None) -> None:
    if data is not None:
        await sandbox.write_bytes(path, data, mode=mode)
        return
    result = await sandbox.exec(["rm", "-f", "--", path], timeout=30)
    if result.exit_code != 0:
        raise OSError(decode(result.stderr).strip() or f"rm failed with exit code {result.exit_code}")


def _text(path: str, data: bytes) -> TextFile:
    if b"\0" in data:
        raise EditError(f"{path} is a binary file; patch changes text only")
    return TextFile.decode(data)


def _diff(path: str, before: str, after: str, new_path: str | None = None) -> str:
    diff = unified_diff(path, before, after, new_path)
    return diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


TOOLS = (
    Tool(
        name="patch",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "mode": {
                    "type": "string",
                    "enum": ["replace", "patch"],
                    "default": "replace",
                    "description": "How the edit is given.",
                },
                "path": {"type": "string", "description": "replace: the file."},
                "old_string": {
                    "type": "string",
                    "description": "replace: text in the file, with enough lines around it to be unique.",
                },
                "new_string": {"type": "string", "description": "replace: the text to put there."},
                "replace_all": {
                    "type": "boolean",
                    "default": False,
                    "description": "replace: change every place.",
                },
                "patch": {"type": "string", "description": "patch: the V4A patch."},
            },
            "required": ["mode"],
        },
        function=patch,
        toolset="file",
    ),
)
