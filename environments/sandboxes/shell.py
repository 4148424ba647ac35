"""A shell whose state outlives its processes: directory, exported variables and functions.

Each command runs in a fresh shell of its own, so nothing that a command does can harm the next
one: it may exit, kill its shell, close its descriptors, print without end or leave an unfinished
quote behind. Before the command the state of the last one is restored, at its end it is saved to
one of two files in turn; the other stays valid if saving is cut short.

Works on any ``Sandbox``, with one ``exec`` per command.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex

from environments.sandboxes.base import ExecResult, Sandbox

_LONGEST_ARGUMENT = 100_000
"""Longer commands go through a file: the kernel refuses arguments above 128 KiB."""

_SAVED = b"\nsaved"

# The shell's own stderr is the channel on which it reports to us; the command's goes to its stdout.
# All is one line, so that the line numbers in error messages are those of the command itself.
# In a plain ``bash -c`` BASH_EXECUTION_STRING holds the command, so a variable of ours need not; and what
# messages quote of the command is the command alone. Tracing and traps of the command see nothing of ours.
# Arguments: state to restore, directory, directory to fall back to (or nothing), scratch, command.
_BASH = (
    "exec 199>&2 2>&1; "
    '[[ -d $4 ]] || mkdir -p -- "$4"; '
    'if [[ -n $1 ]]; then shopt -s extglob; source "$1" 2>/dev/null; shopt -u extglob; fi; '
    'set -- "${OLDPWD-}" "${@:2}"; '
    'if ! builtin cd -- "$2" 2>/dev/null; then '
    'if [[ -z $3 ]]; then builtin cd -- "$2"; exit 1; fi; '
    'builtin printf \'[%s no longer exists; the shell is now in %s]\\n\' "$2" "$3"; '
    'builtin cd -- "$3" || builtin cd /; fi; '
    "OLDPWD=$1; builtin trap {guarded} EXIT; "
    'BASH_EXECUTION_STRING=$5; set --; eval "$BASH_EXECUTION_STRING"; '
    '{ set -- "$?"; builtin trap - DEBUG ERR RETURN; {save}; __hermes_saved=1; } >/dev/null 2>&1; '
    'builtin exit "$1"'
)
_BASH_SAVE = (
    "{ set +ex; builtin pwd >&199; { builtin export -p; builtin declare -f; builtin declare -Fx; } >|{file} "
    "&& builtin printf '\\nsaved' >&199; } 2>/dev/null"
)

_SH = (
    "exec 8>&2 2>&1; "
    '[ -d "$4" ] || mkdir -p -- "$4"; '
    'if [ -n "$1" ]; then . "$1" 2>/dev/null; fi; '
    'if ! cd -- "$2" 2>/dev/null; then '
    'if [ -z "$3" ]; then cd -- "$2"; exit 1; fi; '
    'printf \'[%s no longer exists; the shell is now in %s]\\n\' "$2" "$3"; '
    'cd -- "$3" || cd /; fi; '
    "trap {guarded} EXIT; "
    'eval "set --; $5"; '
    'set -- "$?"; {save}; __hermes_saved=1; exit "$1"'
)
_SH_SAVE = "{ set +ex; pwd >&8; export -p >|{file} && printf '\\nsaved' >&8; } 2>/dev/null"


class Shell:
    """The shell of one rollout. Commands run one after the other."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.cwd = sandbox.working_directory
        """Where the next command will start."""
        self._sandbox = sandbox
        self._turn = asyncio.Lock()
        self.saved = ""
        """The file with the state that the next command begins with, empty before the first."""
        self._slot = 0
        self._has_bash = True

    async def run(self, command: str, *, timeout: float | None, cwd: str | None = None) -> ExecResult:
        """Run shell text to its end; its stderr is part of ``stdout``, its input is empty.

        ``cwd`` is for this command alone. After a time-out, or when the command killed its shell,
        the state is what it was before.
        """
        async with self._turn:
            text = await self._shorten(command)
            file = posixpath.join(self._sandbox.scratch, f"shell-{id(self):x}-{self._slot}")
            result = await self._run_in(self._has_bash, text, file, timeout, cwd)
            if self._has_bash and result.exit_code == 127 and not self._report(result):
                found = await self._sandbox.exec(["sh", "-c", "command -v bash"], timeout=30)
                self._has_bash = found.exit_code == 0
                if not self._has_bash:
                    result = await self._run_in(False, text, file, timeout, cwd)
            self._take_over(self._report(result), file, keep_directory=cwd is not None)
            result.stderr, result.stderr_bytes = b"", 0
            return result

    async def _run_in(
        self, bash: bool, text: str, file: str, timeout: float | None, cwd: str | None
    ) -> ExecResult:
        name, program = (
            ("bash", _program(_BASH, _BASH_SAVE, file)) if bash else ("sh", _program(_SH, _SH_SAVE, file))
        )
        directory, fallback = (
            (self.cwd, self._sandbox.working_directory) if cwd is None else (self._resolve(cwd), "")
        )
        arguments = [self.saved, directory, fallback, self._sandbox.scratch, text]
        return await self._sandbox.exec([name, "-c", program, name, *arguments], timeout=timeout)

    def _report(self, result: ExecResult) -> bytes:
        """What the shell reported at its end; empty if it did not get there."""
        return result.stderr if b"\n" in result.stderr and result.stderr.startswith(b"/") else b""

    def _take_over(self, report: bytes, file: str, *, keep_directory: bool) -> None:
        directory = report.removesuffix(_SAVED).removesuffix(b"\n").decode("utf-8", "surrogateescape")
        if directory and not keep_directory:
            self.cwd = directory
        if report.endswith(_SAVED):
            self.saved = file
            self._slot = 1 - self._slot

    def _resolve(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = self._sandbox.home + path[1:]
        return posixpath.join(self.cwd, path)

    async def _shorten(self, command: str) -> str:
        data = command.encode("utf-8", "surrogateescape")
        if len(data) <= _LONGEST_ARGUMENT:
            return command
        file = posixpath.join(self._sandbox.scratch, f"shell-{id(self):x}-command")
        await self._sandbox.write_bytes(file, data)
        return f'eval "$(cat {shlex.quote(file)})"'


def _program(template: str, save: str, file: str) -> str:
    """The driver, with the code that saves the state to ``file`` in its two places."""
    code = save.replace("{file}", shlex.quote(file))
    guarded = shlex.quote('{ set +x; [ -n "${__hermes_saved-}" ]; } 2>/dev/null || ' + code)
    return template.replace("{guarded}", guarded).replace("{save}", code)
