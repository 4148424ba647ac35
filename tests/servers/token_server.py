"""Raw token endpoints of vLLM, SGLang and Atropos' example server, over a script instead of a model.

The shapes are those of the servers: vLLM's were compared with a running one (``test_real_vllm``); SGLang
needs a GPU and cannot run here, so its ``/generate`` is written down from its source. What a request may
not contain is refused as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from environments.config import APIServerConfig

from .listening import LocalServer

VOCABULARY = 1000
Script = Callable[[list[int]], Sequence[int]]

_SHARED_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "stop_token_ids", "stop", "ignore_eos"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "skip_special_tokens"),
    }
)
_VLLM_PARAMETERS = _SHARED_PARAMETERS | {"logprobs", "max_tokens", "min_tokens", "seed", "n"}
_SGLANG_PARAMETERS = _SHARED_PARAMETERS | {
    *("max_new_tokens", "min_new_tokens", "spaces_between_special_tokens", "no_stop_trim"),
    *("regex", "json_schema"),
}


def logprob(token: int, temperature: float, top_k: int, *, raw: bool) -> float:
    """What the server says of a token: of one candidate it is certain, unless it gives raw values."""
    if not raw and top_k == 1:
        return 0.0
    return -(1 + token % 7) / (1.0 if raw else max(temperature, 1e-3))


class TokenServer(LocalServer):
    """``offers`` are the endpoints that are switched on; the others answer as a server without them.

    ``script`` gives the tokens that follow a prompt. ``cut`` holds, for the next requests, after how many
    tokens the server breaks the reply off itself.
    """

    cancels_handlers = True

    def __init__(
        self,
        script: Script,
        *,
        offers: Sequence[str] = ("/inference/v1/generate", "/v1/completions"),
        eos: int = 2,
        context: int = 512,
        raw: bool = False,
        old_shape: bool = False,
        model: str = "m",
    ) -> None:
        self.script, self.offers, self.eos, self.context = script, offers, eos, context
        self.raw, self.old_shape, self.model = raw, old_shape, model
        self.tokenize: Callable[[str], list[int]] | None = None
        """What ``/tokenize`` answers; None where the server has none."""
        self.encode: Callable[[str], list[int]] | None = None
        """The tokens of a text that is to be completed; None where only tokens are taken."""
        self.owner: str | None = None
        """Who its list of models says that they belong to."""
        self.version = "1"
        self.cut: list[int] = []
        self.broken: list[Callable[[dict[str, Any]], Any]] = []
        """Changes of the next replies, None for none."""
        self.requests: list[dict[str, Any]] = []
        self.delay = 0.0
        self.cancelled = 0

    @property
    def url(self) -> str:
        """Root of the server."""
        return f"http://{self.host}"

    def config(self, server_type: str, **changes: Any) -> APIServerConfig:
        """How a user names the server."""
        fields = {"base_url": f"{self.url}/v1", "model_name": self.model, "server_type": server_type}
        return APIServerConfig.model_validate({**fields, **changes})

    @property
    def prompts(self) -> list[list[int]]:
        """Prompts of the real requests; a probe's is one token long."""
        found = [
            body.get("input_ids") or body.get("token_ids") or body.get("prompt") for body in self.requests
        ]
        ids = [p["prompt_token_ids"] if isinstance(p, dict) else p for p in found]
        return [p for p in ids if len(p) > 1]

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._answer)
        app.router.add_get("/v1/models", self._models)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": self.model, "object": "model", "root": "some/model", "max_model_len": self.context}
        owner = {"owned_by": self.owner} if self.owner else {}
        return web.json_response({"object": "list", "data": [entry | owner]})

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/tokenize" and self.tokenize is not None:
            body = await request.json()
            return web.json_response({"tokens": self.tokenize(body["prompt"])})
        if request.path not in self.offers and request.path.removesuffix("!") not in self.offers:
            if request.path == "/inference/v1/generate":
                return web.json_response({"error": {"message": "not enabled", "code": 403}}, status=403)
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        if isinstance(body.get("prompt"), str):
            if self.encode is None:
                return web.json_response({"error": {"message": "prompt must be token ids"}}, status=400)
            ids = self.encode(body["prompt"])
            return web.json_response({"choices": [{"text": ".", "prompt_token_ids": ids}]})
        self.requests.append(body)
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        try:
            payload = self._endpoint(request.path)(body)
        except ValueError as refusal:
            return web.json_response(
                {"error": {"message": str(refusal), "type": "BadRequestError", "code": 400}}, status=400
            )
        change = self.broken.pop(0) if self.broken else None
        return web.json_response(change(payload) if change else payload)

    def _endpoint(self, path: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        if path == "/generate":
            return self._example if "example" in self.offers else self._sglang
        return self._generate if path == "/inference/v1/generate" else self._completions

    def _sample(
        self, prompt: list[int], parameters: dict[str, Any], limit: int
    ) -> tuple[list[int], list[float], str, int | None]:
        """Tokens, log-probabilities, finish reason, and the stop token that was asked for."""
        if len(prompt) + limit > self.context:
            raise ValueError(
                f"This model's maximum context length is {self.context} tokens. However, your request has "
                f"{len(prompt)} input tokens and asks for {limit}."
            )
        stops = set(parameters.get("stop_token_ids") or [])
        tokens: list[int] = []
        reason, matched = "length", None
        for token in self.script(prompt):
            if len(tokens) == limit:
                break
            tokens.append(token)
            if token == self.eos or token in stops:
                reason, matched = "stop", token if token in stops else None
                break
        if self.cut and len(prompt) > 1:
            tokens, reason, matched = tokens[: self.cut.pop(0)], "abort", None
        temperature, top_k = parameters.get("temperature", 1.0), parameters.get("top_k", -1)
        return tokens, [logprob(t, temperature, top_k, raw=self.raw) for t in tokens], reason, matched

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        parameters = body["sampling_params"]
        if unknown := set(parameters) - _VLLM_PARAMETERS:
            raise ValueError(f"unknown sampling parameters {unknown}")
        prompt = body["token_ids"]
        tokens, values, reason, matched = self._sample(prompt, parameters, parameters.get("max_tokens", 16))
        content = [
            {"token": f"token_id:{t}", "logprob": v, "bytes": None, "top_logprobs": []}
            if self.old_shape
            else {"token_id": t, "logprob": v, "rank": 1, "top_logprobs": [{"token_id": t, "logprob": v}]}
            for t, v in zip(tokens, values, strict=True)
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": reason,
            "stop_reason": matched,
            "token_ids": tokens,
            "logprobs": {"content": content},
        }
        if not self.old_shape:
            choice["weight_versions"] = [{"version": self.version, "start": 0, "end": len(tokens)}]
        return {
            "request_id": "r",
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)},
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        }

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        tokens, values, reason, matched = self._sample(prompt, body, body.get("max_tokens", 16))
        choice: dict[str, Any] = {
            "index": 0,
            "text": " ".join(map(str, tokens)),
            "finish_reason": reason,
            "stop_reason": matched,
            "logprobs": {"token_logprobs": values, "tokens": [str(t) for t in tokens], "top_logprobs": None},
        }
        if body.get("return_token_ids"):
            choice |= {"token_ids": tokens, "prompt_token_ids": prompt}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)},
        }

    def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        parameters = body["sampling_params"]
        if unknown := set(parameters) - _SGLANG_PARAMETERS:
            raise ValueError(f"SamplingParams got unexpected arguments {unknown}")
        prompt = body["input_ids"]
        limit = parameters.get("max_new_tokens", 128)
        if len(prompt) + limit >= self.context:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
            )
        tokens, values, reason, matched = self._sample(prompt, parameters, limit)
        kinds: dict[str, dict[str, Any]] = {
            "stop": {"type": "stop", "matched": matched if matched is not None else self.eos},
            "length": {"type": "length", "length": limit},
            "abort": {"type": "abort", "message": "Aborted by the scheduler", "status_code": None},
        }
        # The text lacks the stop token unless that is asked for; the ids never do.
        shown = tokens if parameters.get("no_stop_trim") or reason != "stop" else tokens[:-1]
        meta: dict[str, Any] = {
            "id": body.get("rid", "x"),
            "finish_reason": kinds[reason],
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            "weight_version": self.version,
        }
        if body.get("return_logprob"):
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[v, t, None] for t, v in zip(tokens, values, strict=True)]
        if top := body.get("top_logprobs_num"):
            heat = parameters.get("temperature", 1.0)
            rivals = [[logprob(t, heat, -1, raw=self.raw), t, None] for t in range(top)]
            meta["output_top_logprobs"] = [rivals for _ in tokens]
        return {"text": " ".join(map(str, shown)), "output_ids": tokens, "meta_info": meta}

    def _example(self, body: dict[str, Any]) -> dict[str, Any]:
        known = _VLLM_PARAMETERS | {"prompt", "stream"}
        if set(body) - known:
            raise ValueError(f"SamplingParams got unexpected arguments {set(body) - known}")
        prompt = body["prompt"]["prompt_token_ids"]
        tokens, values, reason, _ = self._sample(prompt, body, body.get("max_tokens", 16))
        reply: dict[str, Any] = {"text": [" ".join(map(str, tokens))], "finish_reasons": [reason]}
        if body.get("logprobs") is not None:
            reply["logprobs"] = [[[{str(t): v}] for t, v in zip(tokens, values, strict=True)]]
            if not self.old_shape:
                reply |= {"token_ids": [tokens], "prompt_token_ids": prompt}
        return reply


@asynccontextmanager
async def token_server(script: Script, **options: Any) -> AsyncIterator[TokenServer]:
    """A running server."""
    server = TokenServer(script, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
