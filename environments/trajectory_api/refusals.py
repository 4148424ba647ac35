"""A request that the server refuses, with the field that is wrong."""

from __future__ import annotations

from typing import Any

from environments.errors import HermesError


class Refused(HermesError):
    """A request is answered with 4xx. ``field`` is where the fault lies, as a path of names and numbers."""

    def __init__(self, field: str | tuple[str | int, ...], message: str, *, status: int = 422) -> None:
        self.path = (field,) if isinstance(field, str) else field
        self.message, self.status = message, status
        super().__init__(f"{'.'.join(map(str, self.path))}: {message}")

    def detail(self) -> dict[str, Any]:
        """The body of the reply, in the form of FastAPI's validation errors."""
        location = ["body", *self.path] if self.path != ("body",) else ["body"]
        return {"detail": [{"type": "value_error", "loc": location, "msg": self.message}]}

    def inside(self, *path: str | int) -> Refused:
        """The same refusal, one level deeper."""
        return Refused((*path, *self.path), self.message, status=self.status)
