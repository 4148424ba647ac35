"""``search_files``: text in files, or files by name.

``find`` and ``grep`` as every image has them, busybox included, do all the work; no faster tool is
used where it happens to be installed. So the answer depends on the files and on nothing else.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from environments.sandboxes.base import ExecResult
from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import find, is_directory, not_found, resolve
from environments.tools.search_globs import glob_to_extended, hidden_is_meant
from environments.tools.search_patterns import to_extended, to_octal
from environments.tools.text import decode, shorten_line

TIME_LIMIT = 60
"""Seconds of one search; a tree that takes longer has to be narrowed down anyway."""

LARGEST_LIMIT = 1_000
LARGEST_CONTEXT = 20
LINE_LIMIT = 500
"""Characters shown of a matching line."""

_LISTING_LIMIT = 32_000_000
_SLOT = "grep_without_binary"

DESCRIPTION = (
    "Search files. target=content: lines that match the regular expression pattern (extended syntax with "
    "\\d \\w \\s \\b; no look-around; (?i) at the start ignores case). target=files: files whose name "
    "matches the glob pattern (with a slash: whose path does). Results are sorted by path. Hidden files "
    "and directories, .git among them, and binary files are left out, unless path is one or the glob "
    "begins with a dot; .gitignore has no influence."
)

# Patterns come as octal escapes for printf: they hold bytes that are no text. Processes are what a search
# of a small tree costs, so each script starts as few as can be; sorting is done here.
# $1 glob as a pattern, or empty; $2 "1" to look at hidden entries too, .git excepted.
_LIST = r"""
LC_ALL=C; export LC_ALL
newline='
'
list() {
  if [ "$2" = 1 ]; then hide='.git'; else hide='.?*'; fi
  if [ -n "$ONE" ]; then printf '%s\n' "$ONE"
  elif [ -z "$1" ]; then find . -name "$hide" -prune -o -type f ! -name "*$newline*" -print 2>/dev/null
  else
    glob=$(printf "$1")
    find . -name "$hide" -prune -o -type f ! -name "*$newline*" -print 2>/dev/null | grep -E -e "$glob"
  fi
}
"""

# -I leaves binary files out; busybox takes the option without effect, so both ways are tried out, once in
# a rollout. Where it does not work, binary files are told by a NUL near their start. Greps that have it
# have -Z too, which sets the names of files apart from the rest by a NUL.
_PROBE = r"""
printf 'x\n' | grep -I x >/dev/null 2>&1 || exit 1
printf 'x\000\n' | grep -I x >/dev/null 2>&1 && exit 1
printf 'x\n' | grep -H -Z x >/dev/null 2>&1
"""

# $3 pattern, $4 "i" or empty, $5 "-I" or empty. One line PATH:COUNT for each text file.
_COUNT = r"""
pattern=$(printf "$3") fold=${4:+-i}
count() {
  tr '\n' '\000' | xargs -0 grep $1 -E $fold -c -e "$pattern" -- /dev/null 2>/dev/null
}
if [ -n "$5" ]; then list "$1" "$2" | count "$5"; exit 0; fi
list "$1" "$2" | count "" | grep -v ':0$' | while IFS= read -r entry; do
  nuls=$(head -c 32768 "${entry%:*}" | tr -c -d '\000' | wc -c)
  [ "$nuls" -eq 0 ] && printf '%s\n' "$entry"
done
exit 0
"""

_CHECK = r"""
LC_ALL=C; export LC_ALL
pattern=$(printf "$1")
printf '' | grep -E -e "$pattern" >/dev/null
[ $? -lt 2 ] || exit 2
"""

# $1 pattern, $2 "i" or empty, $3 "-I" or empty, $4 context, $5 bytes of a line, $6 most matches of a file,
# then the files. Lines FILE NUL NUMBER:TEXT, or NUMBER-TEXT around matches.
_SHOW = r"""
LC_ALL=C; export LC_ALL
pattern=$(printf "$1") fold=${2:+-i} text=$3 context=$4 width=$5 most=$6; shift 6
show() {
  grep $text -E $fold -n -m "$most" -A "$context" -B "$context" -e "$pattern" "$@" 2>/dev/null
}
if [ -n "$text" ]; then show -H -Z -- "$@" | cut -b "1-$width"; exit 0; fi
for file do
  show -h -- "$file" | tr -d '\000' | cut -b "1-$width" | while IFS= read -r line; do
    printf '%s\000%s\n' "$file" "$line"
  done
done
exit 0
"""

_NUMBERED = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)


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
    counted = await _run(state, place, _LIST + _COUNT, [*_listing(file_glob), *arguments])
    if not counted.stdout.strip():
        await _check_pattern(state, place, pattern, arguments)
    counts = _counts(counted)
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
        probed = await _run(state, place, _PROBE, [])
        option = state.slots[_SLOT] = "-I" if probed.exit_code == 0 else ""
    return option


async def _check_pattern(state: ToolState, place: _Place, pattern: str, arguments: list[str]) -> None:
    """Nothing at all was counted: there are no files, or grep does not like the pattern."""
    checked = await _run(state, place, _CHECK, arguments[:1])
    if checked.exit_code == 2:
        raise ToolInputError(f"pattern {pattern!r} cannot be searched for: {decode(checked.stderr).strip()}")


async def _search_names(state: ToolState, place: _Place, glob: str, limit: int, offset: int) -> JSON:
    result = await _run(state, place, _LIST + 'list "$@"', _listing(glob))
    names = [decode(line) for line in sorted(result.stdout.split(b"\n")) if line]
    page = names[offset : offset + limit]
    return {
        "total_count": len(names),
        "files": [place.shown(name) for name in page],
        "truncated": offset + len(page) < len(names),
    }


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
    if await find(state.sandbox, where) is None:
        return await not_found(state.sandbox, where)
    directory, name = posixpath.split(where)
    return _Place(directory, f"./{name}", posixpath.dirname(prefix))


def _listing(glob: str | None) -> list[str]:
    if glob is None or not glob.strip():
        return ["", "0"]
    return [to_octal(glob_to_extended(glob)), "1" if hidden_is_meant(glob) else "0"]


async def _run(state: ToolState, place: _Place, script: str, arguments: list[str]) -> ExecResult:
    result = await state.sandbox.exec(
        ["sh", "-c", script, "sh", *arguments],
        cwd=place.directory,
        env={"ONE": place.file or ""},
        timeout=TIME_LIMIT,
        output_limit=_LISTING_LIMIT,
    )
    if result.timed_out:
        raise TimeoutError(f"the search took longer than {TIME_LIMIT} seconds; narrow path or file_glob")
    if result.stdout_bytes > len(result.stdout):
        raise ToolInputError("far too many files match; narrow path, file_glob or pattern")
    if result.exit_code not in (0, 1, 2):
        raise OSError(f"the search failed: {decode(result.stderr).strip()[:500] or result.exit_code}")
    return result


def _counts(result: ExecResult) -> dict[str, int]:
    """Matching lines by file, in the order of paths (of their bytes)."""
    found = []
    for line in result.stdout.split(b"\n"):
        name, _, count = line.rpartition(b":")
        if name and count.isdigit() and count != b"0":
            found.append((name, int(count)))
    return {decode(name): count for name, count in sorted(found)}


async def _matches(
    state: ToolState, place: _Place, counts: dict[str, int], arguments: list[str], page: tuple[int, int, int]
) -> JSON:
    limit, offset, context = page
    total = sum(counts.values())
    files, skipped = _files_of_page(counts, limit, offset)
    matches: list[JSON] = []
    if files:
        width = str(4 * LINE_LIMIT + 20 + max(len(name.encode()) for name in files))
        more = [str(context), width, str(skipped + limit)]
        shown = await _run(state, place, _SHOW, [*arguments, *more, *files])
        for name, lines in _lines_of_files(shown).items():
            matches += _matches_of_file(place.shown(name), lines, context)
        matches = matches[skipped : skipped + limit]
    result: JSON = {"total_count": total, "matches": matches, "truncated": offset + len(matches) < total}
    if result["truncated"]:
        result["hint"] = f"go on with offset={offset + len(matches)}"
    return result


def _files_of_page(counts: dict[str, int], limit: int, offset: int) -> tuple[list[str], int]:
    """The files that hold the page's matches, and how many matches in them come before the page."""
    files: list[str] = []
    seen, skipped = 0, 0
    for name, count in counts.items():
        if seen >= offset + limit:
            break
        if seen + count > offset:
            if not files:
                skipped = offset - seen
            files.append(name)
        seen += count
    return files, skipped


def _lines_of_files(result: ExecResult) -> dict[str, list[str]]:
    """Numbered lines by file, in the order in which they were shown."""
    lines: dict[str, list[str]] = {}
    for line in decode(result.stdout).split("\n"):
        name, apart, rest = line.partition("\0")
        if apart:
            lines.setdefault(name, []).append(rest.replace("\0", ""))
    return lines


def _matches_of_file(path: str, numbered: list[str], context: int) -> list[JSON]:
    lines: list[tuple[int, bool, str]] = []
    for raw in numbered:
        found = _NUMBERED.match(raw)
        if found is not None:
            content = found[3].removesuffix("\r")
            if found[1] == "1":
                content = content.removeprefix("\ufeff")
            line = shorten_line(content, LINE_LIMIT)
            lines.append((int(found[1]), found[2] == ":", line))
    matches: list[JSON] = []
    by_number = {number: line for number, _, line in lines}
    for number, is_match, line in lines:
        if not is_match:
            continue
        match: JSON = {"path": path, "line": number, "content": line}
        if context:
            around = range(1, context + 1)
            match["before"] = [by_number[number - i] for i in reversed(around) if number - i in by_number]
            match["after"] = [by_number[number + i] for i in around if number + i in by_number]
        matches.append(match)
    return matches


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
