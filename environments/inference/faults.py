"""What a server's error means: which of our errors it becomes, and whether trying again can help.

``ServerUnavailable`` is worth another try; every other ``ModelError`` is final.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from environments.errors import AccessDenied, BadRequest, ContextOverflow, ModelError, ServerUnavailable

_EXCERPT = 400
_RETRIED = frozenset({408, 409, 425, 429})

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "string_above_max_length",
    }
)
_OVERFLOW_TEXTS = (
    "maximum context length",
    "max context length",
    "context length exceeded",
    "exceeds the model's context length",
    "longer than the model's context length",
    "maximum model length",
    "exceeds the context window",
    "exceed context limit",
    "exceeds the available context size",
    "exceed_context_size",
    "context size has been exceeded",
    "context window exceeded",
    "prompt is too long",
    "input is too long",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "reduce the length of the messages",
    "too many tokens",
    "`inputs` tokens + `max_new_tokens` must be",
)
_NO_CREDIT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "insufficient_balance"})
_BAD_KEY_CODES = frozenset({"invalid_api_key", "authentication_error", "permission_denied"})
_MODEL_CODES = frozenset({"model_not_found"})
_MODEL_TEXT = re.compile(
    r"model[^.\n]{0,120}(does not exist|not found|is not available|not a valid model)"
    r"|not a valid model|unknown model|no such model",
    re.IGNORECASE,
)
_KEY_TEXT = re.compile(r"(invalid|incorrect|missing|no) api.?key|api.?key (is )?(not valid|invalid)", re.I)
_STATUS_OF_CODE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "server_error": 500,
    "internal_server_error": 500,
    "internal_error": 500,
    "timeout": 504,
    "invalid_request_error": 400,
    "not_found_error": 404,
}


class Unreachable(ServerUnavailable):
    """No connection could be made at all."""


class NoCompletion(ServerUnavailable):
    """An answer that came well and is no reply of a model: a web page, another API."""


class ModelNotFound(AccessDenied):
    """The server does not have the model; the caller may add the ones that it has."""


def error_from_reply(
    where: str, status: int, body: bytes | str, headers: Mapping[str, str] | None = None
) -> ModelError:
    """The error for a reply whose HTTP status says that it failed."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    try:
        payload = orjson.loads(text)
    except orjson.JSONDecodeError:
        payload = None
    retry_after = parse_retry_after(headers or {}, time.time())
    return _classify(where, status, _error_object(payload), text, retry_after)


def error_from_payload(where: str, payload: Any) -> ModelError:
    """The error for an ``error`` object inside a reply that claimed to be good."""
    error = _error_object(payload)
    status = _inner_status(error)
    return _classify(where, status, error, orjson.dumps(payload).decode(), None)


def no_answer(where: str, what: str, *, body: str = "", status: int | None = None) -> ServerUnavailable:
    """The error for a reply that never came, broke off, or makes no sense."""
    said = f": {_shorten(body)}" if body else ""
    return ServerUnavailable(f"{where}: {what}{said}", status=status, body=body)


def scrub(text: str, key: str) -> str:
    """The text without the API key and without anything that stands behind ``Bearer``.

    A stand-in such as ``x`` is no secret, and to blank it would spoil every text.
    """
    if len(key) >= _SHORTEST_SECRET:
        text = text.replace(key, "[key]")
    return _BEARER.sub(r"\1[key]", text)


_SHORTEST_SECRET = 8

_BEARER = re.compile(r"(bearer\s+)[\w.~+/=-]{4,}", re.IGNORECASE)


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds the server wants us to wait: ``retry-after-ms``, else ``Retry-After`` (seconds or a date)."""
    lowered = {key.lower(): value.strip() for key, value in headers.items()}
    try:
        if milliseconds := lowered.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        value = lowered.get("retry-after")
        if not value:
            return None
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def room_for_reply(text: str) -> int | None:
    """Tokens that are left for a reply, where the server refused only because ``max_tokens`` was too large.

    Servers say both the context and the prompt's length; None where the prompt itself does not fit.
    """
    for pattern in _ROOM_PATTERNS:
        if found := pattern.search(text):
            room = int(found["context"]) - int(found["prompt"])
            return room if room > 0 else None
    return None


_ROOM_PATTERNS = (
    re.compile(
        r"maximum context length is (?P<context>\d+) tokens[^\n]{0,200}?"
        r"\((?P<prompt>\d+) (?:in the messages|from the input messages|of text input)"
    ),
    re.compile(
        r"maximum context length is (?P<context>\d+) tokens[^\n]{0,200}?"
        r"(?:request has|prompt contains(?: at least)?|contains at least) (?P<prompt>\d+) input tokens"
    ),
    re.compile(
        r"maximum context length of (?P<context>\d+) tokens[^\n]{0,200}?"
        r"(?P<prompt>\d+) tokens from the input messages"
    ),
)


def _classify(
    where: str, status: int | None, error: dict[str, Any], text: str, retry_after: float | None
) -> ModelError:
    codes = {str(error.get(key)) for key in ("code", "type") if error.get(key) is not None}
    said = _said(error, text)
    redirected = " (a redirection; is base_url right?)" if status and status < 400 else ""
    what = f"HTTP {status}{redirected}" if status else "error"
    message = f"{where}: {what}" + (f": {_shorten(said)}" if said else "")
    kind = _final_kind(status, codes, said, error)
    if kind is not None:
        return kind(message, status=status, body=text)
    return ServerUnavailable(message, status=status, body=text, retry_after=retry_after)


def _final_kind(
    status: int | None, codes: set[str], said: str, error: dict[str, Any]
) -> type[ModelError] | None:
    """The class of an error that no new try can heal, None where one might."""
    lowered = said.lower()
    if codes & _NO_CREDIT_CODES or status == 402:
        return AccessDenied
    if status in _RETRIED:
        return None
    if status is not None and status < 400:
        return AccessDenied  # a redirection: base_url is not the API's address
    if codes & _OVERFLOW_CODES or (
        status not in (401, 403, 404) and any(t in lowered for t in _OVERFLOW_TEXTS)
    ):
        return ContextOverflow
    if status == 413:
        return ContextOverflow
    if codes & _MODEL_CODES or (status in (400, 404, 422) and _MODEL_TEXT.search(said)):
        return ModelNotFound
    if status == 403 and (error.get("metadata", {}) or {}).get("reasons"):
        return BadRequest  # moderation of this prompt, not a matter of the key
    if status in (401, 403, 404) or codes & _BAD_KEY_CODES or (status == 400 and _KEY_TEXT.search(said)):
        return AccessDenied
    if status is not None and 400 <= status < 500:
        return BadRequest
    return None


def _error_object(payload: Any) -> dict[str, Any]:
    """The error in whatever wrapping: OpenAI, FastAPI (``detail``), a bare object, a list (Gemini)."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, dict):
        return {}
    error = payload.get("error", payload.get("detail"))
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {**payload, "message": error}
    return payload


def _inner_status(error: dict[str, Any]) -> int | None:
    for key in ("code", "status", "status_code", "type"):
        value = error.get(key)
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str):
            if value.isdigit() and 400 <= int(value) < 600:
                return int(value)
            if value.lower() in _STATUS_OF_CODE:
                return _STATUS_OF_CODE[value.lower()]
    return None


def _said(error: dict[str, Any], text: str) -> str:
    """The server's words. OpenRouter puts those of the provider behind it into the metadata."""
    message = error.get("message")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    parts = [part for part in (message, raw) if isinstance(part, str) and part]
    return " | ".join(parts) or text


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT else flat[:_EXCERPT] + "..."
