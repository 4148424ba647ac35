"""The process that holds a llama.cpp server: ``python -m environments.inference.llamacpp_child``.

Settings come as one line of JSON on standard input; the address goes out as one line of JSON on
standard output. Then the process lives as long as its standard input stays open: it ends with its
parent, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until standard input is closed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # llama.cpp prints to standard output too: keep a copy for the report, send the rest to the log.
    report = os.dup(1)
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        server = _serve(settings)
    except RuntimeError as error:  # llama.cpp has said on the log what is wrong
        sys.exit(str(error))
    os.write(report, json.dumps({"address": server.listening_address}).encode() + b"\n")
    os.close(report)
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)  # Without the server's own clean-up, which waits for running replies.


def _serve(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]  # the slots share it in equal parts
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cpuparams.poll = 0  # waiting threads must not take the cores of the sandboxes
    params.cpuparams_batch.poll = 0
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.model_alias = {os.path.basename(settings["model"])}  # noqa: PTH119 - no more imports than needed
    params.use_jinja = True
    params.ui = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
