"""``run-api``: the trajectory API as a program."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import math
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from environments.cli_output import open_closed_streams, tell
from environments.errors import ConfigError, HermesError, refusing

TOKEN_VARIABLE = "TRAJECTORY_API_TOKEN"
"""Where server and clients look for the bearer token."""

DATA_DIRECTORY = "trajectory_api_data"

logger = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="run-api",
        allow_abbrev=False,
        description="Serve the trajectory API: environments leave scored groups, trainers fetch batches.",
    )
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options.add_argument("--port", type=_port, default=8000, help="port (default: %(default)s)")
    options.add_argument(
        "--data",
        type=Path,
        default=Path(DATA_DIRECTORY),
        metavar="DIR",
        help="directory that keeps everything over restarts (default: ./%(default)s)",
    )
    options.add_argument(
        "--token",
        help=f"ask every caller for this bearer token; better set {TOKEN_VARIABLE}, or --token-file",
    )
    options.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    options.add_argument(
        "--max-body-mb", type=_count, default=128, metavar="MB", help="longest body (default: %(default)s)"
    )
    options.add_argument(
        "--max-queue",
        type=_count,
        default=4096,
        metavar="GROUPS",
        help="waiting groups at which clients that understand it get 429 (default: %(default)s)",
    )
    options.add_argument(
        "--lease",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="time without a call after which an environment no longer counts (default: %(default)s)",
    )
    options.add_argument(
        "--stall",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="time after which a client that stopped in the middle is given up (default: %(default)s)",
    )
    options.add_argument(
        "--keep",
        action="store_true",
        help="keep groups when the trainer is done with them, for GET /groups and 'hermes-env export'",
    )
    options.add_argument(
        "--durable", action="store_true", help="survive loss of power, not only of the process; slower"
    )
    options.add_argument("--reload", action="store_true", help=argparse.SUPPRESS)
    options.add_argument(
        "--log-level",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it is stopped; returns the exit code."""
    open_closed_streams()
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        return _serve(arguments)
    except HermesError as error:
        tell(f"error: {error}\n")
        return 2 if error.refused else 1


def _serve(arguments: argparse.Namespace) -> int:
    import uvicorn

    from environments.trajectory_api.app import make_app
    from environments.trajectory_api.connections import patient_protocol
    from environments.trajectory_api.service import Limits, Service
    from environments.trajectory_api.store import Store

    token = _token(arguments)
    if not token and not _is_loopback(arguments.host):
        logger.warning("%s is open to the network and no token is set (%s)", arguments.host, TOKEN_VARIABLE)
    limits = Limits(
        body=arguments.max_body_mb << 20,
        queue=arguments.max_queue,
        lease=arguments.lease,
        stall=arguments.stall,
        keep=arguments.keep,
    )
    listener = _listen(arguments.host, arguments.port)
    with refusing():
        store = Store(arguments.data, durable=arguments.durable)
    try:
        service = Service(store, limits)
        for namespace, job in service.jobs.items():
            logger.info("%s: going on at step %d with %d groups", namespace, job.step, len(job.queue))
            for batch in job.batches.values():
                if batch.state == "undelivered":
                    logger.warning(
                        "%s: batch %d (%d sequences) may not have reached the trainer; kept, see /batches",
                        namespace,
                        batch.id,
                        batch.size,
                    )
        port = listener.getsockname()[1]
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        logger.info("trajectory API on http://%s:%d, data in %s", host, port, store.path)
        config = uvicorn.Config(
            make_app(service, token=token, local=_is_loopback(arguments.host)),
            http=patient_protocol(limits.stall),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=10,
            h11_max_incomplete_event_size=1 << 16,
        )
        server = uvicorn.Server(config)
        server.run(sockets=[listener])
        return 0 if server.started else 1
    finally:
        store.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``ConfigError`` that says what stands in the way."""
    try:
        families = {info[0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        # Only where the protocol is named asyncio sends small replies at once (TCP_NODELAY).
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ConfigError(f"cannot listen on {host}, port {port} (--host, --port): {reason}") from error


def _token(arguments: argparse.Namespace) -> str | None:
    """The token, where one is asked for. One that is empty is a mistake, not a server open to all."""
    if arguments.token_file is not None:
        source = f"--token-file {arguments.token_file}"
        try:
            token = str(arguments.token_file.read_text().strip())
        except OSError as error:
            raise ConfigError(f"{source}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ConfigError(f"{source} is no text") from None
    elif arguments.token is not None:
        source, token = "--token", arguments.token
    else:
        source, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            return None
    if not token:
        raise ConfigError(f"{source} holds no token")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{source}: a token is made of printable ASCII characters without spaces")
    return str(token)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _seconds(text: str) -> float:
    from environments.real_numbers import plain_number

    try:
        seconds = plain_number(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds above 0")
    return seconds


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 0 to 65535 is needed")
    return int(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
