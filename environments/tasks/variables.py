"""``${VAR}`` and ``${VAR:-default}`` in the environments that tasks declare, from this machine's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from environments.errors import VerifierError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def resolve_variables(values: Mapping[str, str], where: str) -> dict[str, str]:
    """The values with their variables filled in. Raises ``VerifierError`` for one that is not set."""

    def value(found: re.Match[str]) -> str:
        text = os.environ.get(found[1], found[2])
        if text is None:
            raise VerifierError(f"{where} needs the variable {found[1]}, which is not set here")
        return text

    return {name: _VARIABLE.sub(value, text) for name, text in values.items()}


def missing_variables(values: Mapping[str, str]) -> list[str]:
    """Variables that have neither a value here nor a default."""
    found = [match for text in values.values() for match in _VARIABLE.finditer(text)]
    return sorted({m[1] for m in found if m[2] is None and m[1] not in os.environ})
