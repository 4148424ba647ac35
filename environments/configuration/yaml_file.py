"""Configuration files: where they are found and how they are read.

A file has the sections ``env:`` (a mapping) and ``openai:`` (a mapping, or a list for several servers).
``${VAR}`` and ``${VAR:-default}`` in a string stand for environment variables, ``$${VAR}`` for the text
``${VAR}``; a value that is nothing but one variable is read as YAML would read what it holds. YAML is
imported only when a file is read.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from environments.configuration.fields import (
    item_annotation,
    options,
    read_native,
    value_annotation,
)
from environments.configuration.validation import Problems, Setting, Settings, near_names
from environments.errors import ConfigError

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node, ScalarNode

PACKAGE = Path(__file__).resolve().parent.parent
IGNORED_KEYS = ("slurm", "testing")
"""Keys of the original's files that have no effect here."""

_log = logging.getLogger(__name__)
_STANDARD_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"(?P<escaped>\$)?\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}")


@dataclass(frozen=True)
class FileSettings:
    """What one file says. ``servers`` is None where it has no ``openai:`` section."""

    env: Settings
    servers: list[Settings] | None


# --- finding ----------------------------------------------------------------------------------------------


def find_config(name: str | Path, module_file: str | None) -> Path:
    """The file that ``--config`` means.

    ``default`` is the default.yaml beside the environment's module. A path that does not exist here is
    looked up inside the installed package. Raises ConfigError, naming near files.
    """
    if str(name) == "default":
        if module_file is None:
            raise ConfigError("--config default: this environment was not defined in a file")
        path = Path(module_file).resolve().with_name("default.yaml")
        if not path.is_file():
            raise ConfigError(f"--config default: there is no {path}")
        return path
    given = Path(name).expanduser()
    if given.is_dir():
        raise ConfigError(f"--config {name}: is a directory{_near(given / 'default.yaml')}")
    if given.exists():
        return given
    if not given.is_absolute() and ".." not in given.parts:
        for root in (PACKAGE.parent, PACKAGE):
            path = root / given
            if path.is_relative_to(PACKAGE) and path.is_file():
                return path
    raise ConfigError(f"--config {name}: no such file{_near(given)}")


def _near(path: Path) -> str:
    candidates = {str(p): p.name for p in sorted(path.parent.glob("*.y*ml"))} if path.parent.is_dir() else {}
    for shipped in sorted(PACKAGE.rglob("*.yaml")):
        candidates.setdefault(str(shipped.relative_to(PACKAGE.parent)), "")
    near = [
        c for c, file in candidates.items() if difflib.SequenceMatcher(None, file, path.name).ratio() > 0.6
    ]
    near = near or difflib.get_close_matches(str(path), candidates, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(near[:3])}?" if near else ""


# --- reading ----------------------------------------------------------------------------------------------


def read_config(
    path: Path, env_model: type[BaseModel], server_model: type[BaseModel], problems: Problems
) -> FileSettings:
    """Read one file. What is wrong with its values is noted in ``problems``.

    Raises ConfigError where it cannot be read at all: no file, not UTF-8, not YAML.
    """
    document = _Document(_display(path), problems)
    root = _compose(path, document.file)
    env: Settings = {}
    servers: list[Settings] | None = None
    for key, key_node, node in document.entries(root, "the file"):
        if key == "env":
            env = document.settings(node, env_model, "env")
        elif key == "openai":
            servers = document.servers(node, server_model)
        elif key in IGNORED_KEYS:
            _log.warning("%s: %r has no effect here", document.at(key_node), key)
        else:
            document.unknown(key, key_node, ("env", "openai"), "section")
    return FileSettings(env, servers)


def _display(path: Path) -> str:
    """A path as the user would write it: relative to here or to the package where that is possible."""
    for root in (Path.cwd(), PACKAGE.parent):
        if path.is_absolute() and path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


def _compose(path: Path, file: str) -> Node | None:
    import yaml

    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    try:
        loader = yaml.SafeLoader(data)
        try:
            root: Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        context = f" ({error.context})" if error.context else ""
        raise ConfigError(f"{file}{where}: not valid YAML: {error.problem}{context}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
    return root


class _Document:
    """Turns the nodes of one file into values, guided by the annotations of the fields."""

    def __init__(self, file: str, problems: Problems) -> None:
        from yaml.constructor import SafeConstructor
        from yaml.resolver import Resolver

        self.file = file
        self._problems = problems
        self._constructor = SafeConstructor()
        self._resolver = Resolver()
        self._open: set[int] = set()
        self._flat: set[int] = set()

    def at(self, node: Node) -> str:
        """``file:line`` of a node."""
        return f"{self.file}:{node.start_mark.line + 1}"

    def unknown(self, key: str, node: Node, known: Iterable[str], kind: str) -> None:
        """Note a key that does not exist, with the near ones."""
        self._problems.add(f"{self.at(node)}: unknown {kind} {key!r}{near_names(key, known)}")

    def entries(self, node: Node | None, what: str) -> Iterator[tuple[str, Node, Node]]:
        """Key, key's node and value's node of a mapping; an empty value is an empty mapping."""
        from yaml.nodes import MappingNode, ScalarNode

        if node is None or (isinstance(node, ScalarNode) and node.tag.endswith(":null")):
            return
        if not isinstance(node, MappingNode):
            self._problems.add(f"{self.at(node)}: {what} must be a mapping (key: value)")
            return
        self._check_and_flatten(node)
        # After flattening, an anchor's entries stand before the mapping's own, which win.
        last = {str(key.value): (key, value) for key, value in node.value if isinstance(key, ScalarNode)}
        for name, (key, value) in last.items():
            yield name, key, value

    def _check_and_flatten(self, node: MappingNode) -> None:
        """Note keys that stand there twice, then put in what ``<<`` refers to; once per node."""
        from yaml import MarkedYAMLError
        from yaml.nodes import ScalarNode

        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        seen: dict[str, Node] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                self._problems.add(f"{self.at(key)}: a key must be plain text")
            elif key.value in seen:
                first = seen[key.value].start_mark.line + 1
                self._problems.add(f"{self.at(key)}: {key.value!r} stands there already (line {first})")
            else:
                seen[key.value] = key
        try:
            self._constructor.flatten_mapping(node)
        except MarkedYAMLError as error:
            self._problems.add(f"{self.at(node)}: {error.problem}")

    def settings(self, node: Node | None, model: type[BaseModel], section: str) -> Settings:
        """One section, its unknown keys noted."""
        found: Settings = {}
        fields = model.model_fields
        for key, key_node, value_node in self.entries(node, f"{section}:"):
            if key not in fields and model.model_config.get("extra") != "allow":
                self.unknown(key, key_node, fields, f"key in {section}")
                continue
            annotation = fields[key].annotation if key in fields else Any
            origin, written = self.at(key_node), self._written(value_node)
            try:
                found[key] = Setting(self._value(value_node, annotation), origin, written)
            except UnsetVariable as error:  # names a variable, never its value: told of secrets too
                self._problems.add(f"{section}.{key}: {error} ({origin})")
            except ValueError as error:
                if isinstance(value_node.value, str):
                    setting = Setting(value_node.value, origin)
                    self._problems.bad_value(model, key, section, setting, str(error))
                else:
                    self._problems.add(f"{section}.{key}: {error} ({origin})")
        return found

    def servers(self, node: Node, model: type[BaseModel]) -> list[Settings]:
        """The ``openai:`` section: one mapping, or a list of them."""
        from yaml.nodes import SequenceNode

        if isinstance(node, SequenceNode):
            return [self.settings(entry, model, f"openai[{i}]") for i, entry in enumerate(node.value)]
        return [self.settings(node, model, "openai")]

    # Values: substituted ones, and as they are written.

    def _value(self, node: Node, annotation: Any) -> Any:
        from yaml.nodes import ScalarNode

        if isinstance(node, ScalarNode):
            return self._scalar(node, annotation)
        return self._collection(node, annotation, self._value)

    def _written(self, node: Node) -> Any:
        """The value with its ``${VAR}`` left as they are; None where it has none."""
        used = False

        def spell(node: Node, annotation: Any) -> Any:
            from yaml.nodes import ScalarNode

            nonlocal used
            if not isinstance(node, ScalarNode):
                return self._collection(node, annotation, spell)
            self._refuse_tag(node)
            if any(not match["escaped"] for match in _VARIABLE.finditer(node.value)):
                used = True
                return node.value
            return self._native(node.tag, node.value, node)

        try:
            value = spell(node, Any)
        except ValueError:
            return None
        return value if used else None

    def _collection(self, node: Node, annotation: Any, convert: Callable[[Node, Any], Any]) -> Any:
        from yaml.nodes import SequenceNode

        if id(node) in self._open:
            raise ValueError("an anchor that contains itself")
        self._refuse_tag(node)
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                item = item_annotation(annotation)
                return [convert(child, item) for child in node.value]
            type_of = value_annotation(annotation)
            return {key: convert(value, type_of(key)) for key, _, value in self.entries(node, "the value")}
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: ScalarNode, annotation: Any) -> Any:
        self._refuse_tag(node)
        text, tag, quoted = node.value, node.tag, node.style is not None
        if "${" in text:
            text, whole = substitute(text, os.environ)
            tag = _STANDARD_TAG + "str"
            if whole:
                tag = self._resolver.resolve(type(node), text, (True, False))  # type: ignore[no-untyped-call]
                quoted = False
        if tag.endswith(":null"):
            arms = options(annotation)
            return "" if text == "" != node.value and str in arms and type(None) not in arms else None
        return read_native(annotation, self._native(tag, text, node), text, quoted=quoted)

    def _native(self, tag: str, text: str, node: ScalarNode) -> Any:
        """What YAML takes a scalar for; dates stay text."""
        if tag.endswith(":timestamp"):
            return text
        from yaml import YAMLError

        scalar = type(node)(tag, text, node.start_mark, node.end_mark)
        try:
            return self._constructor.construct_object(scalar, deep=True)
        except (ValueError, LookupError, YAMLError):
            raise ValueError(f"not a YAML {tag.removeprefix(_STANDARD_TAG)}") from None

    def _refuse_tag(self, node: Node) -> None:
        if not node.tag.startswith(_STANDARD_TAG):
            raise ValueError(f"the tag {node.tag} is not known here")


class UnsetVariable(ValueError):
    """A ``${VAR}`` without a value; the message names the variable."""


def substitute(text: str, variables: os._Environ[str] | dict[str, str]) -> tuple[str, bool]:
    """Put variables into a string.

    Returns the text and whether all of it was one variable. Raises UnsetVariable for one that is not set
    and has no default.
    """

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        value = variables.get(match["name"])
        if match["default"] is not None:
            return value or match["default"]
        if value is None:
            raise UnsetVariable(f"the environment variable {match['name']} is not set")
        return value

    whole = _VARIABLE.fullmatch(text)
    return _VARIABLE.sub(replace, text), whole is not None and not whole["escaped"]
