"""What to say where a machine, or we, refuse to go on before a connection stands."""

from __future__ import annotations

from pathlib import Path

from environments.sandboxes.ssh.options import Address, SSHOptions

_PORT = 22


def explain_refusal(options: SSHOptions, machine: Address, error: Exception) -> str:
    """Why ``machine`` was not entered: it refused our keys, or its host key is not the one we know."""
    import asyncssh

    if not isinstance(error, asyncssh.HostKeyNotVerifiable):
        return f"{machine} refuses every key: {error}; name one with --env.ssh_key or add it to the agent"
    file = options.known_hosts or str(Path("~/.ssh/known_hosts").expanduser())
    if _knows(file, machine):
        return (
            f"the host key of {machine} is another one than {file} has: the machine was set up anew, or "
            f"another one answers in its place. Find out which, then replace the key in that file"
        )
    return (
        f"the host key of {machine} is not known: {error}; connect once with ssh and check it, "
        "or name a file with --env.ssh_known_hosts"
    )


def explain_key(options: SSHOptions, error: Exception) -> str:
    """Why our own key cannot be used."""
    import asyncssh

    which = f"the key {options.key}" if options.key else "a key of ~/.ssh"
    if isinstance(error, asyncssh.KeyEncryptionError) or "passphrase" in str(error).lower():
        return f"{which} needs a passphrase: add it to the agent (ssh-add), which then gives it to us"
    return f"{which} cannot be used: {error}; name a private key with --env.ssh_key"


def _knows(file: str, machine: Address) -> bool:
    """Whether a file of host keys has any for this machine."""
    import asyncssh

    try:
        known = asyncssh.read_known_hosts(file)
    except (OSError, ValueError):
        return False
    return bool(asyncssh.match_known_hosts(known, machine.host, "", machine.port or _PORT)[0])
