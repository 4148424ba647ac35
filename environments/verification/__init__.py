"""Grading: a task's tests run after the agent, so that the agent cannot have prepared the result.

``verify(task, sandbox)`` is the whole interface. It needs nothing of the agent layer, so any loop and
any trainer can call it. What it can and cannot resist stands in ``docs/verification.md``.
"""

from __future__ import annotations

from environments.verification.grading import verify

__all__ = ["verify"]
