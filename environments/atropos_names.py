"""Serves ``atroposlib.*`` imports of user code where the real package is not installed.

Environments written for Atropos begin with
``from atroposlib.envs.server_handling.server_manager import APIServerConfig``. The finder stands at
the very end of ``sys.meta_path``, so an installed ``atroposlib`` always wins.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAMES: dict[str, dict[str, str]] = {
    "atroposlib": {},
    "atroposlib.envs": {},
    "atroposlib.envs.server_handling": {},
    "atroposlib.envs.base": {
        "BaseEnv": "environments.base_env",
        "BaseEnvConfig": "environments.config",
        "APIServerConfig": "environments.config",
        "ServerBaseline": "environments.config",
        "EvalHandlingEnum": "environments.config",
        "ScoredDataGroup": "environments.records",
        "ScoredDataItem": "environments.records",
        "Item": "environments.records",
    },
    "atroposlib.envs.server_handling.server_manager": {
        "APIServerConfig": "environments.config",
        "ServerBaseline": "environments.config",
        "ServerManager": "environments.inference.server_manager",
    },
    "atroposlib.envs.server_handling.server_baseline": {
        "APIServerConfig": "environments.config",
        "ServerBaseline": "environments.config",
    },
    "atroposlib.type_definitions": {"Item": "environments.records", "Message": "environments.records"},
}


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _NAMES:
            return None
        is_package = any(name.startswith(fullname + ".") for name in _NAMES)
        return ModuleSpec(fullname, self, origin=__file__, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        names = _NAMES[module.__name__]

        def get(name: str) -> Any:
            if name not in names:
                raise AttributeError(
                    f"{module.__name__}.{name} is not served by hermes-environments; install atroposlib"
                )
            return getattr(importlib.import_module(names[name]), name)

        module.__dict__["__getattr__"] = get


def install() -> None:
    """Append the finder, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
