"""Whether the log-probabilities that servers give are those of what is sampled.

A trainer divides its own probability of a token by the server's. Where the server leaves temperature or a
filter out of it, that ratio is of two different distributions, and nothing in the data shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base_env import BaseEnv


def log_probability_trouble(environment: BaseEnv) -> str | None:
    """What is wrong with the servers' log-probabilities under the run's sampling, None where nothing is."""
    parameters = environment.sampling_parameters()
    found = environment.server.unaccounted(parameters)
    if not found:
        return None
    servers = "; ".join(f"{label} leaves out {', '.join(sorted(names))}" for label, names in found.items())
    filters = sorted({name for names in found.values() for name in names} - {"temperature"})
    neutral = " and ".join(["--env.agent_temperature 1", *(f"no {name}" for name in filters)])
    return (
        f"log-probabilities of the servers are not those of what is sampled ({servers}): start vLLM with "
        f"--logprobs-mode processed_logprobs, or sample with {neutral}"
    )
