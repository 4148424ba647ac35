"""What the endpoints are, for ``/docs`` and ``/openapi.json``."""

from __future__ import annotations

import html
from typing import Any

ENDPOINTS = (
    ("GET", "/", "root", "Name of the API."),
    ("POST", "/register", "register", "A trainer begins a run, or goes on with it (same parameters)."),
    ("GET", "/batch", "batch", "The next batch. Options: consumer, acknowledge, policy_version."),
    ("POST", "/batch/acknowledge", "acknowledge", "A consumer has safely taken a batch over."),
    ("GET", "/batches", "batches", "Batches that are out or whose sending was cut off."),
    ("POST", "/batches/requeue", "requeue", "Let a batch be handed out once more."),
    ("GET", "/groups", "groups", "Stored groups, read along. Options: after, limit. Changes nothing."),
    ("GET", "/wandb_info", "wandb_info", "Project and group of the run in W&B."),
    ("GET", "/info", "info", "Batch size and longest sequence."),
    ("GET", "/status", "status", "Step, and groups that wait."),
    ("GET", "/latest_example", "latest_example", "The group that came last."),
    ("GET", "/reset_data", "reset_data", "Set the run aside; a trainer registers anew."),
    ("POST", "/register-env", "register_env", "An environment joins, once the trainer has started."),
    ("POST", "/disconnect-env", "disconnect_env", "An environment leaves."),
    ("GET", "/status-env", "status_env", "Step, queue and weight, as one environment sees them."),
    ("POST", "/scored_data", "scored_data", "One scored group. Header: Idempotency-Key."),
    ("POST", "/scored_data_list", "scored_data_list", "Several scored groups; all are taken or none."),
    ("GET", "/healthz", "healthz", "Whether the server works. Needs no token."),
    ("GET", "/metrics", "metrics", "Counters and gauges for Prometheus."),
    ("GET", "/openapi.json", "openapi", "This API as an OpenAPI document."),
    ("GET", "/docs", "docs", "This API as a page."),
)
"""Method, path, name of the handler, and what it is for."""


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    from environments.trajectory_api.messages import EnvIdentifier, RegisterEnv, Registration
    from environments.trajectory_api.wire import FIELDS

    models: dict[str, type[Any]] = {
        "/register": Registration,
        "/register-env": RegisterEnv,
        "/disconnect-env": EnvIdentifier,
        "/status-env": EnvIdentifier,
    }
    group = {
        "type": "object",
        "required": ["tokens", "masks", "scores"],
        "properties": {name: {} for name in (*FIELDS, "rollout_ids", "policy_version", "idempotency_key")},
    }
    paths: dict[str, Any] = {}
    for method, path, name, text in ENDPOINTS:
        entry: dict[str, Any] = {
            "operationId": name,
            "summary": text,
            "responses": {"200": {"description": "done"}, "4XX": {"description": "refused; names the field"}},
        }
        schema: dict[str, Any] | None = None
        if path in models:
            schema = models[path].model_json_schema()
        elif path == "/scored_data":
            schema = group
        elif path == "/scored_data_list":
            schema = {"type": "array", "items": group}
        if schema is not None:
            entry["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths[path] = {method.lower(): entry}
    return {"openapi": "3.1.0", "info": {"title": "Trajectory API", "version": version}, "paths": paths}


def page() -> str:
    """The endpoints as one plain page."""
    rows = "".join(
        f"<tr><td>{method}</td><td><code>{html.escape(path)}</code></td><td>{html.escape(text)}</td></tr>"
        for method, path, _, text in ENDPOINTS
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Trajectory API</title>"
        "<style>body{font:16px sans-serif;margin:2em}td{padding:.3em 1em .3em 0}</style>"
        "<h1>Trajectory API</h1><p>All endpoints also stand under <code>/ns/NAME</code>, one job per name. "
        f'The same as <a href="openapi.json">OpenAPI</a>.</p><table>{rows}</table>'
    )
