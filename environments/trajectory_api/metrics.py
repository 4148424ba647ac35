"""Prometheus' text form of what a server has done and where it stands."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.trajectory_api.job import Job
    from environments.trajectory_api.service import Service

_COUNTERS = {
    "groups_received": "Groups taken and stored.",
    "groups_duplicate": "Groups sent again and not taken twice.",
    "groups_refused": "Groups refused with 4xx.",
    "groups_stale": "Groups dropped because their policy was too old.",
    "groups_handed_out": "Groups handed out in batches.",
    "batches_handed_out": "Batches handed out.",
    "batches_undelivered": "Batches whose sending was cut off.",
    "tokens_received": "Tokens in the groups taken.",
    "deferred": "Posts answered with 429.",
}


def render(service: Service) -> str:
    """All metrics; names begin with ``trajectory_api_``."""
    return "\n".join([*_counters(service), *_gauges(service)]) + "\n"


def _counters(service: Service) -> Iterator[str]:
    for name, text in _COUNTERS.items():
        yield f"# HELP trajectory_api_{name}_total {text}"
        yield f"# TYPE trajectory_api_{name}_total counter"
        namespaces = {n for counter, n in service.counters if counter == name} | set(service.jobs)
        for namespace in sorted(namespaces):
            value = service.counters[name, namespace]
            yield f'trajectory_api_{name}_total{{namespace="{namespace}"}} {value}'


def _gauges(service: Service) -> Iterator[str]:
    now = time.monotonic()
    rows: dict[str, tuple[str, Callable[[Job], int]]] = {
        "queue_groups": ("Groups that wait.", lambda job: len(job.queue)),
        "queue_sequences": ("Sequences that wait.", lambda job: sum(g.size for g in job.queue)),
        "outstanding_sequences": ("Sequences handed out and not finished.", lambda job: job.outstanding),
        "current_step": ("Batches handed out, from the starting step.", lambda job: job.step),
        "environments": (
            "Environments connected and heard of lately.",
            lambda job: sum(e.alive(now, job.lease) for e in job.environments),
        ),
    }
    for name, (text, value) in rows.items():
        yield f"# HELP trajectory_api_{name} {text}"
        yield f"# TYPE trajectory_api_{name} gauge"
        for namespace, job in sorted(service.jobs.items()):
            yield f'trajectory_api_{name}{{namespace="{namespace}"}} {value(job)}'
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "# TYPE process_cpu_seconds_total counter"
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}"
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {service.started_at:.3f}"
