"""Data of a tool's result that is no text: it goes to a file in the sandbox, whose path the model gets."""

from __future__ import annotations

import base64
import binascii
import hashlib
import posixpath
import re

from environments.tools.base import ToolState


async def store_encoded(state: ToolState, encoded: str, kind: str | None, directory: str) -> str:
    """Write base64 data below the sandbox's scratch directory; what to tell the model.

    ``kind`` is its media type. The name comes from the content, so that equal data is one file.
    """
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{kind or 'data'} that cannot be decoded]"
    digest = hashlib.sha256(data).hexdigest()[:12]
    suffix = re.sub(r"[^a-z0-9]", "", (kind or "").rpartition("/")[2]) or "bin"
    path = posixpath.join(state.sandbox.scratch, directory, f"{digest}.{suffix}")
    await state.sandbox.write_bytes(path, data)
    return f"[{kind or 'data'}, {len(data)} bytes, in {path}]"
