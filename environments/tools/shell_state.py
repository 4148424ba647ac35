"""The one shell of a rollout, shared by the terminal tool and by all that resolve paths."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from environments.tools.base import ToolState

if TYPE_CHECKING:
    from environments.sandboxes.shell import Shell

_SLOT = "shell"
_STARTED = "shell_state_files"


def shell_of(state: ToolState) -> Shell:
    """The rollout's shell, made at first use."""
    shell: Shell | None = state.slots.get(_SLOT)
    if shell is None:
        from environments.sandboxes.shell import Shell

        shell = state.slots[_SLOT] = Shell(state.sandbox)
    return shell


def current_directory(state: ToolState) -> str:
    """Where the model's shell stands: its last ``cd`` if it ran any command."""
    shell: Shell | None = state.slots.get(_SLOT)
    return shell.cwd if shell is not None else state.sandbox.working_directory


def after_shell_state(state: ToolState, command: str, directory: str) -> str:
    """``command`` for a process that starts with the state of the shell as it is now.

    It must have begun before the shell is used twice, which writes over what is read here.
    """
    shell: Shell | None = state.slots.get(_SLOT)
    if shell is None or not shell.saved:
        return command
    return _restored(shlex.quote(shell.saved), command, directory)


async def with_shell_state(state: ToolState, command: str, directory: str, timeout: float) -> str:
    """``command`` for a process of its own that starts with the shell's variables and functions."""
    if _SLOT not in state.slots:
        return command
    number = state.slots[_STARTED] = state.slots.get(_STARTED, 0) + 1
    file = shlex.quote(f"{state.sandbox.scratch}/shell-state-{number}")
    # Without bash there is no declare, and no function is kept.
    saving = f"{{ export -p; declare -f; }} >{file} 2>/dev/null; true"
    await shell_of(state).run(saving, timeout=timeout)
    return _restored(file, command, directory)


def _restored(file: str, command: str, directory: str) -> str:
    # The saved PWD is the shell's: cd puts it right where the command runs elsewhere.
    return f". {file} 2>/dev/null; cd -- {shlex.quote(directory)} || exit\n{command}"
