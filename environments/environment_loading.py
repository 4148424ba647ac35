"""Environment classes from ``package.module:Class``, ``path/to/file.py:Class`` or ``path/to/file.py``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.errors import ConfigError, HermesError, UserCodeError, suggestion

_PACKAGE = Path(__file__).resolve().parent


def load_environment(target: str) -> Any:
    """Import the environment class that ``target`` names.

    The directory of a file goes on ``sys.path``, as for a script; ``atroposlib`` names are served where
    that package is not installed.

    Raises:
        ConfigError: no such file, module or class, or a file with several environments and none named.
        UserCodeError: the module itself raised; its traceback is in the message.
    """
    from environments import atropos_names

    atropos_names.install()
    place, _, class_name = target.rpartition(":") if _names_class(target) else (target, "", "")
    module = _import_file(place) if _is_file(place) else _import_module(place)
    return _named_class(module, class_name, place) if class_name else _only_class(module, place)


def _names_class(target: str) -> bool:
    place, colon, name = target.rpartition(":")
    return bool(colon and place and name.isidentifier())


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _named_class(module: ModuleType, name: str, place: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{place} has no {name!r}{suggestion(name, _environment_classes(module))}")
    if not _is_environment(found):
        raise ConfigError(f"{place}:{name} is not an environment (a subclass of BaseEnv)")
    return found


def _only_class(module: ModuleType, place: str) -> Any:
    own = {n: c for n, c in _environment_classes(module).items() if c.__module__ == module.__name__}
    if len(own) == 1:
        return next(iter(own.values()))
    if not own:
        raise ConfigError(f"{place} defines no environment (a subclass of BaseEnv)")
    raise ConfigError(
        f"{place} defines several environments; name one: {place}:{min(own)} ({', '.join(own)})"
    )


def _environment_classes(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if _is_environment(value) and not getattr(value, "__abstractmethods__", None)
    }


def _is_environment(value: Any) -> bool:
    """By its interface, so that looking does not import the base class."""
    return isinstance(value, type) and all(hasattr(value, a) for a in ("config_init", "run_command"))


# --- importing --------------------------------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(f"there is no module {name!r} (no module named {error.name!r})") from None
        raise _broken(name, error) from error
    except HermesError:
        raise
    except Exception as error:  # importing is the user's code, which may raise anything
        raise _broken(name, error) from error


def _import_file(place: str) -> ModuleType:
    path = Path(place).expanduser()
    shipped = _PACKAGE.parent / path
    if not path.is_file() and shipped.is_relative_to(_PACKAGE) and shipped.is_file():
        path = shipped
    if not path.is_file():
        near = suggestion(
            path.name, [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        )
        raise ConfigError(f"there is no file {place}{near}")
    path = path.resolve()
    root, name = _dotted(path)
    if path.is_relative_to(_PACKAGE):
        return _import_module(name)
    for directory in (str(root), str(path.parent)):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    if root != path.parent:
        return _import_module(name)
    return _execute(path, name)


def _dotted(path: Path) -> tuple[Path, str]:
    """The directory above the package that a file belongs to, and its full module name."""
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _execute(path: Path, name: str) -> ModuleType:
    """Import exactly this file, also where its name is that of another module."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        name = f"hermes_environment_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a module that failed is not left to be imported again
        del sys.modules[name]
        if isinstance(error, HermesError) or not isinstance(error, Exception):
            raise
        raise _broken(str(path), error) from error
    return module


def _broken(what: str, error: BaseException) -> UserCodeError:
    """With the traceback from the user's first frame on; importlib's and ours say nothing to him."""
    frames = error.__traceback__
    while frames is not None and _is_machinery(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return UserCodeError(f"{what} cannot be imported:\n{text}")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename
