"""From process start to exit status: one task group, signals, a drain with a deadline.

`main` builds the service, spawns its tasks, waits for `stopping`, then refuses new work, hands over, ends its tasks and
closes. The first SIGTERM or SIGINT sets `stopping`; what has not ended `drain_seconds` later is cancelled. A second
signal ends the process at once, which loses nothing: services may die at any instruction. When a task fails, the whole
service ends with status 1, for the supervisor to start it again; with 2 and one line where a person has to act first.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog
import uvloop

from services.chassis.errors import SetupError

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SETUP_STATUS = 2
CANCEL_SECONDS = 5.0
"""What cancelled tasks may still take before the process ends regardless."""

GARBAGE_THRESHOLDS = (50_000, 20, 100)
"""Allocations until a collection, and collections until one of the next generation. States and records hold no cycles,
so collecting as eagerly as by default walks thousands of living objects for nothing: a tenth of a busy service's time.
"""

T = TypeVar("T")
Spawn = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]
"""As `Lifecycle.spawn`: some work, and its name."""

logger = structlog.get_logger()


class Lifecycle:
    def __init__(self, group: asyncio.TaskGroup, drain_seconds: float) -> None:
        self._group = group
        self._drain_seconds = drain_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stopping = asyncio.Event()
        self.cut_short = False
        """Whether the drain time was not enough."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task of the service. It is cancelled when `main` returns; if it raises, the service ends."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def stop(self) -> None:
        """As the first signal does."""
        if not self.stopping.is_set():
            self.stopping.set()
            asyncio.get_running_loop().call_later(self._drain_seconds, self._cut_short)

    async def end_tasks(self) -> None:
        """For `main`, once it has drained: ends all other tasks before it closes what they work with."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CANCEL_SECONDS)

    def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stop()

    def _cut_short(self) -> None:
        if self._tasks:
            self.cut_short = True
            logger.warning(
                "drain_cut_short", seconds=self._drain_seconds, tasks=sorted(task.get_name() for task in self._tasks)
            )
            self.cancel_tasks()
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, os._exit, 1)


def run_service(main: Callable[[Lifecycle], Awaitable[None]], drain_seconds: float) -> int:
    """Run until `main` returns or something fails; return the exit status for `sys.exit`."""
    gc.freeze()  # what was imported stays, and need not be looked at again
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    return uvloop.run(_run(main, drain_seconds))


async def _run(main: Callable[[Lifecycle], Awaitable[None]], drain_seconds: float) -> int:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.TaskGroup() as group:
            lifecycle = Lifecycle(group, drain_seconds)
            for signal_number in SIGNALS:
                loop.add_signal_handler(signal_number, _on_signal, lifecycle, signal_number)
            lifecycle.spawn(_main(main, lifecycle), "main").add_done_callback(lambda _: lifecycle.cancel_tasks())
    except BaseExceptionGroup as failures:
        leaves = _leaves(failures)
        setup = [failure for failure in leaves if isinstance(failure, SetupError)]
        if setup:
            sys.stderr.writelines(f"threadlog: {failure}\n" for failure in setup)
            return SETUP_STATUS
        for failure in leaves:
            logger.error("service_failed", error=repr(failure), exc_info=failure)
        return 1
    finally:
        for signal_number in SIGNALS:
            loop.remove_signal_handler(signal_number)
    logger.info("service_ended", cut_short=lifecycle.cut_short)
    return 1 if lifecycle.cut_short else 0


async def _main(main: Callable[[Lifecycle], Awaitable[None]], lifecycle: Lifecycle) -> None:
    await main(lifecycle)


def _on_signal(lifecycle: Lifecycle, signal_number: signal.Signals) -> None:
    if lifecycle.stopping.is_set():
        logger.warning("service_ends_at_once", signal=signal_number.name)
        os._exit(128 + signal_number)
    logger.info("service_stopping", signal=signal_number.name)
    lifecycle.stop()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves
