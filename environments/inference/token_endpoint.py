"""Which raw token endpoint a server offers, found out by asking it for one token.

Trying is surer than reading a list of routes: routes exist that are switched off, and replies come
without ids from servers that do not know the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.errors import AccessDenied, BadRequest, ConfigError, ModelError, ServerUnavailable
from environments.inference.replies import MalformedReply
from environments.inference.sglang import SGLANG_WIRES
from environments.inference.token_wire import SHAPING, TokenWire
from environments.inference.vllm import VLLM_WIRES

if TYPE_CHECKING:
    from environments.inference.model_server import ModelServer
    from environments.inference.transport import Transport

TOKEN_SERVERS = ("vllm", "sglang")
"""Server types that give exact tokens."""

_WIRES: dict[str, Sequence[TokenWire]] = {"vllm": VLLM_WIRES, "sglang": SGLANG_WIRES}
_ADVICE = {
    "/inference/v1/generate": "start vLLM with --enable-scale-out",
    "/v1/completions": "needs vLLM 0.10.2 or later",
}
_OWNERS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "library": "Ollama"}
"""Which program a server is, by the owner that its list of models names."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """What a server offers.

    ``context_length`` is the model's context in tokens and ``model_path`` where the server has the model
    from (a directory or a name on the hub), each None where it does not say. ``accounted`` are the sampling
    parameters that its log-probabilities account for.
    """

    wire: TokenWire
    context_length: int | None = None
    model_path: str | None = None
    accounted: frozenset[str] = SHAPING


async def find_token_endpoint(server: ModelServer, transport: Transport, budget: float) -> TokenEndpoint:
    """Ask a server for one token over each endpoint that it may have, the best first.

    Raises ``ConfigError`` where none gives token ids with log-probabilities, ``AccessDenied`` for a bad
    key or a wrong model, ``ServerUnavailable`` where the server does not answer. ``budget`` is seconds.
    """
    refusals: list[tuple[TokenWire, Exception]] = []
    for wire in _WIRES[server.config.server_type]:
        try:
            accounted = await _try(wire, server, transport, budget)
        except (BadRequest, AccessDenied, MalformedReply) as refusal:
            refusals.append((wire, refusal))
        except ServerUnavailable as error:
            if error.status not in (500, 501):  # which some give for a route or a field that they lack
                raise
            refusals.append((wire, error))
        else:
            listed = await _listed(server, transport)
            return TokenEndpoint(
                wire,
                context_length=server.config.context_length or listed[0],
                model_path=listed[1],
                accounted=accounted,
            )
    raise await _none_offered(server, transport, refusals)


async def find_token_endpoint_again(
    server: ModelServer, transport: Transport, budget: float, known: TokenEndpoint
) -> TokenEndpoint:
    """What a server offers that no longer has the endpoint it had, because it was started anew.

    Raises as ``find_token_endpoint`` does, and ``ConfigError`` where its log-probabilities account for less
    than they did: the run has relied on them.
    """
    found = await find_token_endpoint(server, transport, budget)
    if not found.accounted >= known.accounted:
        raise ConfigError(
            f"{server.label} came back with log-probabilities that leave out the sampling parameters; "
            "start it as it was before"
        )
    return found


async def server_tokens(
    server: ModelServer, transport: Transport, budget: float, text: str
) -> list[int] | None:
    """The tokens that the server's own tokenizer makes of ``text``; None where it does not say.

    Behind a gateway that does not pass ``/tokenize`` on, vLLM still tells them beside a completion.
    """
    body = {"model": server.config.model_name, "prompt": text, "add_special_tokens": False}
    payload = await _told(server, transport, budget, "/tokenize", body)
    tokens = payload.get("tokens")
    if tokens is None and server.config.server_type == "vllm":
        body |= {"max_tokens": 1, "return_token_ids": True}
        payload = await _told(server, transport, budget, "/v1/completions", body)
        choices = payload.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        tokens = first.get("prompt_token_ids") if isinstance(first, dict) else None
    whole = isinstance(tokens, list) and all(type(token) is int and 0 <= token < 2**31 for token in tokens)
    return tokens if whole else None


async def _told(
    server: ModelServer, transport: Transport, budget: float, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    try:
        return (await transport.post(server.target, f"{server.root}{path}", body, budget)).payload
    except ModelError:  # not every server has this, and a bad key or model shows elsewhere
        return {}


async def _try(wire: TokenWire, server: ModelServer, transport: Transport, budget: float) -> frozenset[str]:
    """One token over an endpoint: what its log-probabilities account for. Raises what stands against it."""
    ask = wire.probe()
    body = wire.body(server.config.model_name, ask)
    exchange = await transport.post(server.target, f"{server.root}{wire.path}", body, budget)
    return wire.accounted(exchange.payload, wire.read(exchange.payload, ask))


async def _listed(server: ModelServer, transport: Transport) -> tuple[int | None, str | None]:
    """Context length and origin of the model, from the server's list of models."""
    models = await transport.models(server.target, server.root)
    named = [model for model in models if model["id"] == server.config.model_name] or models[:1]
    for model in named:
        length, root = model.get("max_model_len"), model.get("root")
        return (
            length if isinstance(length, int) and length > 0 else None,
            root if isinstance(root, str) and root else None,
        )
    return None, None


async def _none_offered(
    server: ModelServer, transport: Transport, refusals: Sequence[tuple[TokenWire, Exception]]
) -> Exception:
    """The error for a server without a usable endpoint; names what each one answered."""
    statuses = [getattr(refusal, "status", None) for _, refusal in refusals]
    if 401 in statuses:
        return refusals[statuses.index(401)][1]
    if all(status == 403 for status in statuses):  # one alone is an endpoint that is switched off
        return refusals[0][1]
    models = await transport.models(server.target, server.root)
    names = [str(model["id"]) for model in models]
    if names and server.config.model_name not in names:
        return AccessDenied(
            f"{server.label} has no model {server.config.model_name!r}; it offers: {', '.join(names)}"
        )
    kind = server.config.server_type
    program = next((_OWNERS[o] for m in models if (o := str(m.get("owned_by")).lower()) in _OWNERS), None)
    said = "; ".join(
        f"{wire.path}: {refusal}{_advice(wire) if kind == 'vllm' and program in (None, 'vLLM') else ''}"
        for wire, refusal in refusals
    )
    return ConfigError(
        f"{server.label} {f'is {program} and ' if program else ''}gives no token ids with log-probabilities, "
        f"which --openai.server_type {kind} needs ({said}). {_instead(kind, program)}"
    )


def _advice(wire: TokenWire) -> str:
    advice = _ADVICE.get(wire.path)
    return f" ({advice})" if advice else ""


def _instead(kind: str, program: str | None) -> str:
    """What to do, as far as it is known which program the server is."""
    named = (program or "").lower()
    if named in TOKEN_SERVERS and named != kind:
        return f"Use --openai.server_type {named}"
    chat = "For chat completions alone (process, evaluate), use --openai.server_type openai"
    return chat if named == kind else f"{chat}; to train with serve, start vLLM or SGLang (docs/servers.md)"
