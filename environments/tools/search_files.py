"""``search_files``: text in files, or files by name.

``find`` and ``grep`` as every image has them, busybox included, do all the work; no faster tool is
used where it happens to be installed. So the answer depends on the files and on nothing else. Only what
ignore files leave out is worked out here, between two commands.
"""

from __future__ import annotations

import asyncio
import posixpath
from dataclasses import dataclass

from environments.sandboxes.base import ExecResult
from environments.tools import search_pass as one_pass
from environments.tools import search_scripts as scripts
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import describe, find, is_directory, not_found, resolve
from environments.tools.search_globs import glob_to_extended, hidden_is_meant
from environments.tools.search_patterns import to_extended, to_octal
from environments.tools.search_results import (
    LINE_LIMIT,
    counts_of,
    files_of_page,
    lines_of_files,
    matches_of_file,
    page_of,
    real_name,
)
from environments.tools.search_tree import IgnoreTree
from environments.tools.text import decode

TIME_LIMIT = 60
"""Seconds of one search; a tree that takes longer has to be narrowed down anyway."""

LARGEST_LIMIT = 1_000
LARGEST_CONTEXT = 20

_LISTING_LIMIT = 32_000_000
_LONGEST_ARGUMENT = 100_000
"""Bytes; Linux takes no argument above 131,072."""

_SLOT = "grep_without_binary"
_ONE_PASS = "search_in_one_pass"
_RULES = "search_found_ignore_files"
_NOT_IN_ONE_PASS = 3

DESCRIPTION = (
    "Search files. target=content: lines that match the regular expression pattern (extended syntax with "
    "\\d \\w \\s \\b; no look-around; (?i) at the start ignores case). target=files: files whose name "
    "matches the glob pattern (with a slash: whose path does). Results are sorted by path. Hidden files "
    "and directories, .git among them, and binary files are left out, unless path is one or the glob "
    "begins with a dot. What .gitignore and .ignore name is left out, unless path or the glob names it."
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to search: a directory, or one file in it."""

    directory: str
    file: str | None
    prefix: str

    def shown(self, listed: str) -> str:
        """A path of ``find .`` as the model would write it."""
        return (
            posixpath.join(self.prefix, listed.removeprefix("./"))
            if self.prefix
            else listed.removeprefix("./")
        )


async def search_files(
    state: ToolState,
    pattern: str,
    target: str = "content",
    path: str = ".",
    file_glob: str | None = None,
    limit: int = 50,
    offset: int = 0,
    output_mode: str = "content",
    context: int = 0,
) -> JSON:
    """Matches ``offset`` to ``offset + limit - 1`` in the order of paths."""
    _check("limit", limit, 1, LARGEST_LIMIT)
    _check("offset", offset, 0, None)
    _check("context", context, 0, LARGEST_CONTEXT)
    place = await _place(state, path)
    if isinstance(place, str):
        return {"error": place}
    if target == "files":
        return await _search_names(state, place, pattern, limit, offset)
    expression, ignore_case = to_extended(pattern)
    arguments = [to_octal(expression), "i" if ignore_case else "", await _without_binary(state, place)]
    if output_mode == "content":
        found = await _search_in_one_pass(state, place, expression, ignore_case, file_glob, context)
        if found is not None:
            if b"grep:" in found.stderr and not found.stdout:
                await _check_pattern(state, place, pattern, arguments)
            return _page_of_all(place, found, limit, offset, context)
    counted = await _over_files(state, place, file_glob, scripts.COUNT, arguments)
    if not counted.strip():
        await _check_pattern(state, place, pattern, arguments)
    counts = counts_of(counted)
    if output_mode == "content":
        return await _matches(state, place, counts, arguments, (limit, offset, context))
    page = list(counts.items())[offset : offset + limit]
    truncated = offset + len(page) < len(counts)
    if output_mode == "files_only":
        files = [place.shown(name) for name, _ in page]
        return {"total_count": len(counts), "files": files, "truncated": truncated}
    shown = {place.shown(name): count for name, count in page}
    return {"total_count": sum(counts.values()), "counts": shown, "truncated": truncated}


async def _without_binary(state: ToolState, place: _Place) -> str:
    """The option by which this sandbox's grep leaves out binary files, or nothing."""
    option: str | None = state.slots.get(_SLOT)
    if option is None:
        probed = await _run(state, place, scripts.PROBE, [])
        option = state.slots[_SLOT] = "-I" if probed.exit_code in (0, _NOT_IN_ONE_PASS) else ""
        state.slots[_ONE_PASS] = probed.exit_code == 0
    return option


async def _search_in_one_pass(
    state: ToolState, place: _Place, expression: str, ignore_case: bool, glob: str | None, context: int
) -> ExecResult | None:
    """All lines that match, where one program can find them and they are not too many."""
    name = one_pass.plain_glob(glob)
    if name is None or not state.slots[_ONE_PASS] or not expression.isascii() or state.slots.get(_RULES):
        return None
    if place.file is not None and "\n" in place.file:
        return None
    command = one_pass.matching(expression, ignore_case, context, name, place.file)
    found = await _run_program(state, place, command, one_pass.FIND_LIMIT)
    return found if found.stdout_bytes == len(found.stdout) and _is_whole(state, found) else None


async def _check_pattern(state: ToolState, place: _Place, pattern: str, arguments: list[str]) -> None:
    """Nothing at all was counted: there are no files, or grep does not like the pattern."""
    checked = await _run(state, place, scripts.CHECK, arguments[:1])
    if checked.exit_code == 2:
        raise ToolInputError(f"pattern {pattern!r} cannot be searched for: {decode(checked.stderr).strip()}")


async def _search_names(state: ToolState, place: _Place, glob: str, limit: int, offset: int) -> JSON:
    listed = await _names_in_one_pass(state, place, glob)
    if listed is None:
        listed = await _over_files(state, place, glob, scripts.SHOW_NAMES, [])
    names = [decode(line) for line in sorted(map(real_name, listed.split(b"\n"))) if line]
    page = names[offset : offset + limit]
    return {
        "total_count": len(names),
        "files": [place.shown(name) for name in page],
        "truncated": offset + len(page) < len(names),
    }


async def _names_in_one_pass(state: ToolState, place: _Place, glob: str) -> bytes | None:
    name = one_pass.plain_glob(glob)
    if name is None or place.file is not None or state.slots.get(_RULES):
        return None
    result = await _run_program(state, place, one_pass.listing(name), _LISTING_LIMIT)
    _refuse_excerpt(result)
    return result.stdout if _is_whole(state, result) else None


def _is_whole(state: ToolState, found: ExecResult) -> bool:
    """Whether one pass was enough. Where it was not, the rollout's next searches do not try it."""
    state.slots[_RULES] = not one_pass.is_whole(found.stdout)
    return not state.slots[_RULES]


async def _over_files(
    state: ToolState, place: _Place, glob: str | None, script: str, arguments: list[str]
) -> bytes:
    """What a script makes of the files that are to be searched.

    It runs at once where no ignore file is about; else the files and those rules come here first.
    """
    listing = _listing(glob)
    result = await _run(state, place, scripts.LIST + script, [*listing, "", *arguments])
    if not result.stdout.startswith(b"\0"):
        return result.stdout
    _, where, names, rules = result.stdout.split(b"\0", 3)
    kept = b"\n".join(await asyncio.to_thread(_kept, rules, where, glob if listing[0] else None, names))
    if not kept or script is scripts.SHOW_NAMES:
        return kept
    given = [*listing[:2], "1", *arguments]
    return (await _run(state, place, scripts.LIST + script, given, stdin=kept)).stdout


def _kept(rules: bytes, where: bytes, glob: str | None, names: bytes) -> list[bytes]:
    return IgnoreTree(rules, where, glob).kept(names.split(b"\n"))


def _check(name: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        upper = f" and at most {most}" if most is not None else ""
        raise ToolInputError(f"{name} must be at least {least}{upper}, not {value}")


async def _place(state: ToolState, path: str) -> _Place | str:
    """Where to search, or the error for the model."""
    where = resolve(state, path)
    if path.strip() in (".", "./"):
        return _Place(where, None, "")
    prefix = path.strip()
    if await is_directory(state.sandbox, where):
        return _Place(where, None, prefix)
    info = await find(state.sandbox, where)
    if info is None:
        return await not_found(state.sandbox, where)
    if info.kind == "other":  # a device or a pipe: a search would never end
        return f"{where} cannot be searched: not a regular file"
    try:  # what may not be read would have no matches
        await state.sandbox.read_bytes(where, length=1)
    except OSError as error:
        return f"{where} cannot be searched: {describe(error)}"
    directory, name = posixpath.split(where)
    return _Place(directory, f"./{name}", posixpath.dirname(prefix))


def _listing(glob: str | None) -> list[str]:
    if glob is None or not glob.strip():
        return ["", "0"]
    return [to_octal(glob_to_extended(glob)), "1" if hidden_is_meant(glob) else "0"]


async def _run(
    state: ToolState, place: _Place, script: str, arguments: list[str], stdin: bytes | None = None
) -> ExecResult:
    command = ["sh", "-c", script, "sh", *arguments]
    result = await _run_program(state, place, command, _LISTING_LIMIT, stdin)
    _refuse_excerpt(result)
    return result


async def _run_program(
    state: ToolState, place: _Place, command: list[str], limit: int, stdin: bytes | None = None
) -> ExecResult:
    if max(len(word.encode(errors="surrogateescape")) for word in command) > _LONGEST_ARGUMENT:
        raise ToolInputError("pattern or file_glob is too long; search for a part of it")
    result = await state.sandbox.exec(
        command,
        cwd=place.directory,
        env={"ONE": (place.file or "").replace("\n", "\x01"), "LC_ALL": "C"},
        stdin=stdin,
        timeout=TIME_LIMIT,
        output_limit=limit,
    )
    if result.timed_out:
        raise TimeoutError(f"the search took longer than {TIME_LIMIT} seconds; narrow path or file_glob")
    if result.exit_code not in (0, 1, 2):
        await _check_directory(state, place)
        raise OSError(f"the search failed: {decode(result.stderr).strip()[:500] or result.exit_code}")
    return result


async def _check_directory(state: ToolState, place: _Place) -> None:
    """Say so where a search failed because its directory cannot be looked into."""
    try:
        await state.sandbox.list(place.directory)
    except OSError as error:
        raise ToolInputError(f"{place.directory} cannot be searched: {describe(error)}") from None


def _refuse_excerpt(result: ExecResult) -> None:
    if result.stdout_bytes > len(result.stdout):
        raise ToolInputError("far too many files match; narrow path, file_glob or pattern")


async def _matches(
    state: ToolState, place: _Place, counts: dict[str, int], arguments: list[str], page: tuple[int, int, int]
) -> JSON:
    limit, offset, context = page
    total = sum(counts.values())
    files, skipped = files_of_page(counts, limit, offset)
    matches: list[JSON] = []
    if files:
        width = str(4 * LINE_LIMIT + 20 + max(len(name.encode()) for name in files))
        more = [str(context), width, str(skipped + limit)]
        shown = await _run(state, place, scripts.SHOW, [*arguments, *more, *files])
        for name, lines in lines_of_files(shown).items():
            matches += matches_of_file(place.shown(decode(name)), lines, context)
        matches = matches[skipped : skipped + limit]
    return page_of(total, matches, offset)


def _page_of_all(place: _Place, found: ExecResult, limit: int, offset: int, context: int) -> JSON:
    """A page of the matches of one pass."""
    matches: list[JSON] = []
    lines = lines_of_files(found)
    for name in sorted(lines):
        matches += matches_of_file(place.shown(decode(name)), lines[name], context)
    return page_of(len(matches), matches[offset : offset + limit], offset)


TOOLS = (
    Tool(
        name="search_files",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Regular expression, or glob for files."},
                "target": {
                    "type": "string",
                    "enum": ["content", "files"],
                    "default": "content",
                    "description": "Search in files, or for files.",
                },
                "path": {"type": "string", "default": ".", "description": "Directory or file."},
                "file_glob": {"type": "string", "description": "Only files like this, such as *.py."},
                "limit": {"type": "integer", "default": 50, "description": "Most results, up to 1000."},
                "offset": {"type": "integer", "default": 0, "description": "Results to skip."},
                "output_mode": {
                    "type": "string",
                    "enum": ["content", "files_only", "count"],
                    "default": "content",
                    "description": "Lines, paths, or the number of matching lines per file.",
                },
                "context": {
                    "type": "integer",
                    "default": 0,
                    "description": "Lines before and after each match, up to 20.",
                },
            },
            "required": ["pattern"],
        },
        function=search_files,
        toolset="file",
        parallel_safe=True,
    ),
)
