"""Finding a tokenizer with its chat template, and making a verified dialect of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.dialects.families import family_of
from environments.dialects.template import ChatTemplate
from environments.dialects.template_dialect import KeepThinking, TemplateDialect
from environments.dialects.tokenizer import ChatTokenizer
from environments.dialects.verification import verified
from environments.errors import ConfigError, MissingExtra, UnknownName
from environments.tool_call_parsers import get_parser
from environments.tool_call_parsers.base import ToolCallParser
from environments.tool_call_parsers.detection import detect_parser

logger = logging.getLogger(__name__)

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja")
_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_dialect(
    tokenizer: str | Path,
    *,
    tool_parser: str | ToolCallParser | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    thinking: KeepThinking = "template",
) -> TemplateDialect:
    """The dialect of the model whose tokenizer is in a folder, a ``tokenizer.json``, or on the hub.

    ``tool_parser`` is a parser or its name; unset, the chat template tells. ``chat_template`` is a
    template, or a file with one, in the place of the tokenizer's own. Raises ``ConfigError`` where
    there is no such tokenizer, or its template cannot be extended turn by turn, saying why;
    ``MissingExtra`` without ``tokenizers``.
    """
    folder = _folder(str(tokenizer))
    configuration = _read_json(folder / "tokenizer_config.json")
    source = _template_source(folder, configuration, chat_template, str(tokenizer))
    encoder = _encoder(folder, str(tokenizer))
    variables = _variables(configuration, _read_json(folder / "special_tokens_map.json"))
    parser, unknown = _parser(tool_parser, source)
    stops = _configured_stops(encoder, variables, _read_json(folder / "generation_config.json"))
    dialect = TemplateDialect(
        tokenizer=encoder,
        template=ChatTemplate(source, variables),
        parser=parser,
        stop_token_ids=stops,
        family=family_of(source, encoder.controls),
        options=dict(chat_template_kwargs or {}),
        thinking=thinking,
    )
    dialect = verified(dialect, str(tokenizer))
    if unknown is not None and dialect.tools_problem is None:
        raise unknown
    _warn_of_another_form(parser, source, str(tokenizer))
    return dialect


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path.parent
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"tokenizer {name!r}: there is no such folder")
    return _download(name)


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise MissingExtra(f"tokenizer {name!r}", "tokens") from None
    try:
        return Path(snapshot_download(name, allow_patterns=[*_FILES, *_TEMPLATE_FILES]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"tokenizer {name!r} is no folder here and cannot be had from the hub: {reason}"
        ) from None


def _encoder(folder: Path, name: str) -> ChatTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("exact tokens (a managed session)", "tokens") from None
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"tokenizer {name!r} has no tokenizer.json; make one with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ConfigError(f"tokenizer {name!r}: tokenizer.json cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    state = _read_json(file)
    _check_ids(backend, state, name)
    return ChatTokenizer(backend, state)


def _check_ids(backend: Any, stated: Mapping[str, Any], name: str) -> None:
    """The library gives an added token a new id where the vocabulary does not have it: find that."""
    for token in stated.get("added_tokens") or []:
        if (given := backend.token_to_id(token["content"])) != token["id"]:
            raise ConfigError(
                f"tokenizer {name!r}: tokenizer.json says that {token['content']!r} has the id "
                f"{token['id']}, but read by the library it has {given}: its vocabulary lacks the token"
            )


def _warn_of_another_form(parser: ToolCallParser, template: str, name: str) -> None:
    """Say so where the template writes calls in a form that the parser does not look for."""
    found = detect_parser(template)
    if found is None:
        return
    shown = get_parser(found)
    related = isinstance(shown, type(parser)) or isinstance(parser, type(shown))
    if not (related and shown.opening == parser.opening):
        logger.warning(
            "the chat template of %s writes tool calls in the form of %s, and tool_call_parser %s reads "
            "another one: use %s or auto, unless the model was taught otherwise",
            name,
            found,
            parser.name,
            found,
        )


def _template_source(folder: Path, configuration: Mapping[str, Any], given: str | None, name: str) -> str:
    if given is not None:
        if "{" in given:
            return given
        if not Path(given).is_file():
            raise ConfigError(f"chat_template {given!r} is neither a template nor a file")
        return Path(given).read_text(encoding="utf-8")
    for file in ("additional_chat_templates/tool_use.jinja", "chat_template.jinja"):
        if (folder / file).is_file():
            return (folder / file).read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template")
    template = template or configuration.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f"tokenizer {name!r} has no chat template; give one with chat_template")
    return template


def _parser(given: str | ToolCallParser | None, template: str) -> tuple[ToolCallParser, ConfigError | None]:
    """The parser, and what is wrong with having none for a template that writes calls."""
    if isinstance(given, ToolCallParser):
        return given, None
    try:
        return get_parser(given or "auto", chat_template=template), None
    except UnknownName:
        raise
    except ConfigError as unknown:
        return get_parser("hermes"), unknown  # a template without calls needs no parser


def _variables(*configurations: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for configuration in configurations:
        for key in _VARIABLES:
            value = configuration.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.setdefault(key, text)
    return found


def _configured_stops(
    encoder: ChatTokenizer, variables: Mapping[str, str], generation: Mapping[str, Any]
) -> tuple[int, ...]:
    stops: list[int] = []
    named = generation.get("eos_token_id")
    stops += [named] if isinstance(named, int) else [n for n in named or [] if isinstance(n, int)]
    eos = encoder.token_to_id(variables["eos_token"]) if "eos_token" in variables else None
    if eos is not None:
        stops.append(eos)
    return tuple(dict.fromkeys(stops))


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file.name} is no valid JSON: {error}") from None
    return value if isinstance(value, dict) else {}
