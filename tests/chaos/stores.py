"""Kafka's JVM and Postgres as victims: started again, on the same port and data, whenever they die."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import psutil

from services.cli.local.embedded import NotReadyError, Running
from services.cli.local.supervised import ProgramEndedError

LOOK_SECONDS = 0.02
START_TRIES_MAX = 10
START_AGAIN_SECONDS = 0.3


class Store:
    """`start` is a context such as `apache_kafka`, which can be entered again and finds its data."""

    def __init__(self, name: str, start: Callable[[], AbstractContextManager[Running]]) -> None:
        self.name = name
        self._start = start
        self._running: Running | None = None
        self._context: contextlib.ExitStack | None = None
        self._process: psutil.Process | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def running(self) -> Running:
        assert self._running is not None, f"{self.name} was not started"
        return self._running

    async def open(self) -> None:
        await asyncio.to_thread(self._enter)
        self._ready.set()

    async def keep(self) -> None:
        """Until `close`: what has died is started again."""
        while not self._stopping.is_set():
            if self._is_alive():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            self._ready.clear()
            for number in range(START_TRIES_MAX):
                try:
                    await asyncio.to_thread(self._enter)
                    break
                except (ProgramEndedError, NotReadyError):
                    # The killed one's children may still hold what its successor needs.
                    if number == START_TRIES_MAX - 1:
                        raise
                    await asyncio.sleep(START_AGAIN_SECONDS)
            self._ready.set()

    async def close(self) -> None:
        self._stopping.set()
        if self._context is not None:
            await asyncio.to_thread(self._context.close)

    # Victim

    def is_up(self) -> bool:
        return self._ready.is_set() and self._is_alive()

    def kill(self) -> None:
        self._ready.clear()
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def _signal(self, number: signal.Signals) -> None:
        """To the process and all that it has started, as a machine that goes down would."""
        process = self._process
        assert process is not None, f"{self.name} was not started"
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_running()

    def _enter(self) -> None:
        if self._context is not None:
            self._context.close()
        with contextlib.ExitStack() as stack:
            self._running = stack.enter_context(self._start())
            self._process = psutil.Process(self._running.pid)
            self._context = stack.pop_all()
