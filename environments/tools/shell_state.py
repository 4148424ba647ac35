"""The one shell of a rollout, shared by the terminal tool and by all that resolve paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.tools.base import ToolState

if TYPE_CHECKING:
    from environments.sandboxes.shell import Shell

_SLOT = "shell"


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
