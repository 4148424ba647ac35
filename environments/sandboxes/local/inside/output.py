"""Output of a command, of which only the beginning and the end are kept."""

from __future__ import annotations


class CappedOutput:
    """Takes any number of bytes and keeps at most ``limit``: the first 40 % and the last 60 %."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head_limit = limit * 2 // 5
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Append output."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + 65536:  # trimmed now and then, not at each byte
            self._trim()

    def value(self) -> bytes:
        """What was kept."""
        self._trim()
        return bytes(self._head + self._tail)

    def take(self) -> bytes:
        """What was kept, and start anew; ``total`` goes on."""
        value = self.value()
        self._head.clear()
        self._tail.clear()
        return value

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
