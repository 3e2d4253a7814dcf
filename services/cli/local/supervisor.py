"""The services as processes of their own: started, watched, started again when they die, and gone with their owner.

Each keeps its port for probes over its restarts, so that `/readyz` can be asked for it. A service that dies again and
again is given up, with the end of its log in the error. Several processes of one service are told apart by their
instance: `start("runtime", instance="1")` is known as `runtime-1`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from schemas.errors import ThreadlogError
from services.chassis.backoff import backoff_seconds
from services.cli.local.embedded import free_port
from services.cli.local.supervised import Supervised, log_tail, supervised

SERVICES: Final = ("projector", "runtime", "tool-executor", "ingest")
"""The services in the order in which they start."""
BESIDE: Final = ("rollups",)
"""Processes that run beside the services. Nobody waits for them."""
MODULES: Final = {"tool-executor": "services.tool_executor", "rollups": "services.projector.windows.rollups"}
"""Modules of the services that are not named after their package."""
LOOK_SECONDS: Final = 0.02
READY_SECONDS: Final = 180.0
PROBE_SECONDS: Final = 2.0
ENDING_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})

What = Literal["started", "ended", "given up"]
OnChange = Callable[[str, What, int], None]
"""Called with a service, what happened to it, and its process id."""


class ServiceError(ThreadlogError):
    """A service does not run, or is not ready; the text ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Restarts:
    first_seconds: float = 0.1
    most_seconds: float = 5.0
    steady_seconds: float = 10.0
    """A process that ran for so long is started again as if it were the first time."""
    tries_max: int = 8
    """Starts in a row, each of which ended sooner than that."""


NO_RESTARTS: Final = Restarts(tries_max=1)


@dataclass(slots=True)
class _Service:
    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    probes_port: int
    log: Path
    restarts: Restarts
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether nothing of it runs, or will run, any more."""
    process: Supervised | None = None
    """The running process; None between the end of one and the start of the next."""
    given_up: bool = False
    starts: int = 0


def _nothing(_service: str, _what: What, _pid: int) -> None:
    pass


class Supervisor:
    """Use it as an async context: leaving it stops every service."""

    def __init__(self, environment: Mapping[str, str], logs: Path, on_change: OnChange = _nothing) -> None:
        """Prepare to run the services in this environment. Their output goes to `<service>.log` in `logs`."""
        self._environment = dict(environment)
        self._logs = logs
        self._on_change = on_change
        self._services: dict[str, _Service] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._tell_all_to_stop()
        await self._tasks.__aexit__(None, None, None)  # also after an error: they end by themselves now

    def start(
        self,
        service_name: str,
        environment: Mapping[str, str] | None = None,
        *,
        instance: str | None = None,
        restarts: Restarts | None = None,
    ) -> str:
        """One of SERVICES or BESIDE. By default it is started again whenever it ends; NO_RESTARTS lets it lie. Returns
        the name by which all else here knows it. A restarted process has the same instance, so the same place in its
        group.
        """
        assert service_name in {*SERVICES, *BESIDE}, f"{service_name} is none of {SERVICES} and {BESIDE}"
        name = service_name if instance is None else f"{service_name}-{instance}"
        assert name not in self._services or self._services[name].stopped.is_set(), f"{name} runs already"
        port = free_port()
        own = {"THREADLOG_PROBES_PORT": str(port)}
        if instance is not None:
            own["THREADLOG_INSTANCE"] = instance
        service = _Service(
            name=name,
            command=[sys.executable, "-m", MODULES.get(service_name, f"services.{service_name}")],
            environment={**self._environment, **own, **(environment or {})},
            probes_port=port,
            log=self._logs / f"{name}.log",
            restarts=restarts or Restarts(),
        )
        self._services[name] = service
        self._tasks.create_task(self._keep(service), name=f"keep {name}")
        return name

    async def start_all(self, environment: Mapping[str, str] | None = None, *, seconds: float = READY_SECONDS) -> None:
        """Start all SERVICES at once, and return when they are ready."""
        for name in SERVICES:
            self.start(name, environment)
        for name in SERVICES:
            await self.wait_ready(name, seconds)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal to the service's process, and return the process id. Raises ServiceError if none runs."""
        service = self._services[name]
        process = service.process
        if process is None or not process.is_running():
            raise ServiceError(f"{name} does not run; nothing to kill. {log_tail(service.log)}")
        if number in ENDING_SIGNALS:
            service.process = None  # so that nobody takes what it still answers for its successor's
            service.starts = 1  # ends before one that was asked for do not count towards giving it up
        os.kill(process.pid, number)
        return process.pid

    async def wait_ready(self, name: str, seconds: float = READY_SECONDS) -> None:
        """Wait until `/readyz` answers 200. Raises ServiceError."""
        service = self._services[name]
        deadline = asyncio.get_running_loop().time() + seconds
        while service.process is None or not await _is_ready(service.probes_port):
            if service.given_up:
                raise ServiceError(f"{name} ended {service.starts} times in a row. {log_tail(service.log)}")
            if asyncio.get_running_loop().time() > deadline:
                raise ServiceError(f"{name} was not ready within {seconds:.0f} s. {log_tail(service.log)}")
            await asyncio.sleep(LOOK_SECONDS)

    def is_running(self, name: str) -> bool:
        service = self._services.get(name)
        return service is not None and service.process is not None and service.process.is_running()

    def pid(self, name: str) -> int | None:
        process = self._services[name].process
        return None if process is None else process.pid

    def probes_port(self, name: str) -> int:
        return self._services[name].probes_port

    def log(self, name: str) -> Path:
        return self._services[name].log

    async def stop(self, name: str) -> None:
        """Stop all services with SIGTERM, and with SIGKILL after a grace time."""
        service = self._services[name]
        service.stopping.set()
        await service.stopped.wait()

    async def stop_all(self) -> None:
        self._tell_all_to_stop()
        for name in self._services:
            await self.stop(name)

    def _tell_all_to_stop(self) -> None:
        for service in self._services.values():
            service.stopping.set()

    async def _keep(self, service: _Service) -> None:
        try:
            await self._keep_running(service)
        finally:
            service.stopped.set()

    async def _keep_running(self, service: _Service) -> None:
        loop = asyncio.get_running_loop()
        restarts = service.restarts
        while not service.stopping.is_set():
            started = loop.time()
            service.starts += 1
            await self._run_once(service)
            if service.stopping.is_set():
                return
            if loop.time() - started >= restarts.steady_seconds:
                service.starts = 1
            if service.starts >= restarts.tries_max:
                service.given_up = True
                self._on_change(service.name, "given up", 0)
                return
            wait = backoff_seconds(service.starts, restarts.first_seconds, restarts.most_seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.stopping.wait(), wait)

    async def _run_once(self, service: _Service) -> None:
        """Wait until the process has ended, by itself or on request."""
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(supervised(service.command, log=service.log, environment=service.environment))
            service.process = process
            self._on_change(service.name, "started", process.pid)
            try:
                while process.is_running() and not service.stopping.is_set():  # noqa: ASYNC110  # no event tells it
                    await asyncio.sleep(LOOK_SECONDS)
                await asyncio.to_thread(stack.pop_all().close)  # waits for the process
            finally:
                service.process = None
                self._on_change(service.name, "ended", process.pid)


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
