"""A look at a new sandbox: who commands run as, where they begin, and where our own files may lie."""

from __future__ import annotations

from collections.abc import Mapping

from environments.errors import SandboxError
from environments.sandboxes.remote_shell.killing import revoked_directory
from environments.sandboxes.remote_shell.program import quote
from environments.sandboxes.remote_shell.sandbox import Place

_SURVEY = r"""
umask 022
u=$(id -un 2>/dev/null) || u=$(id -u)
case ${HOME:-/} in /) if [ "$(id -u)" = 0 ] && [ -d /root ]; then HOME=/root; fi ;; esac
HOME=${HOME:-/}
s=${TMPDIR:-/tmp}/.hermes-FAMILY
mkdir -p -- "$s" && chmod 700 "$s" || exit 1
w=WORKING
case $w in
  "") w=$(pwd) ;;
  "~") w=$HOME ;;
  "~/"*) w=$HOME/${w#"~/"} ;;
esac
mkdir -p -- "$w" && cd "$w" || exit 1
printf '\n%s\n' BEGIN "$HOME" "$u" "$s" "$(pwd)" END
"""


def survey(family: str, working_directory: str | None) -> str:
    """Shell text that makes the scratch and the working directory and says where they are."""
    return _SURVEY.replace("FAMILY", family).replace("WORKING", quote(working_directory or ""))


def place_of(family: str, answer: str, environment: Mapping[str, str]) -> Place:
    """What ``survey`` printed. ``SandboxError`` with what was printed instead."""
    fields = answer.partition("\nBEGIN\n\n")[2].split("\n\n")
    if len(fields) < 5:
        raise SandboxError(f"the image's shell cannot make a sandbox usable: {answer[-500:]!r}")
    home, user, scratch, working_directory = fields[:4]
    return Place(
        family=family,
        home=home,
        working_directory=working_directory,
        scratch=scratch,
        user=user,
        environment={"HOME": home, **environment},
        revoked=revoked_directory(scratch),
    )
