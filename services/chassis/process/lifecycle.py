"""From process start to exit status: one task group, signals, a drain with a deadline.

**Start.** `main` builds the service, spawns its tasks and waits for `stopping`.

**End.** The first SIGTERM or SIGINT sets `stopping`. `main` then refuses new work, hands over what runs, ends its tasks
and closes. What has not ended `drain_seconds` later is cancelled; what ignores that for CANCEL_SECONDS is ended with
the process. A second signal ends the process at once. That loses nothing: a service may die at any instruction, because
all it knows is in the log.

**Failure.** When a task fails, the whole service ends: half a service would look alive and do half the work. Its status
is 1, and the supervisor starts it again; or it is 2, with one line that tells a person what to do first (SetupError).
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog
import uvloop

from services.chassis.errors import SetupError

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SETUP_STATUS: Final = 2
"""The exit status if a person has to act before a start can succeed: supervisors need not try again."""
CANCEL_SECONDS: Final = 5.0
"""How long cancelled tasks may still take before the process ends regardless."""

GARBAGE_THRESHOLDS: Final = (50_000, 20, 100)
"""Allocations until a collection, and collections until one of the next generation. States and records contain no
cycles, so collecting as eagerly as by default walks thousands of living objects in vain: a tenth of a busy service's
time.
"""

T = TypeVar("T")
Spawn = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]
"""The shape of `Lifecycle.spawn`, which is called with some work and its name."""

logger = structlog.get_logger()


class Lifecycle:
    """The life of one process. All tasks that run as long as the service are spawned here."""

    def __init__(self, group: asyncio.TaskGroup, drain_seconds: float) -> None:
        self._group = group
        self._drain_seconds = drain_seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stopping = asyncio.Event()
        self.cut_short = False
        """Whether the drain took too long and was cancelled."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` as a task of the service. It is cancelled when `main` returns; if it raises, the service ends."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def stop(self) -> None:
        """Begin to stop, as the first signal does. Later calls change nothing."""
        if not self.stopping.is_set():
            self.stopping.set()
            asyncio.get_running_loop().call_later(self._drain_seconds, self._cut_short)

    async def end_tasks(self) -> None:
        """End all other tasks. `main` calls it once it has drained, before it closes what the tasks work with."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CANCEL_SECONDS)

    def cancel_tasks(self) -> None:
        """Cancel all tasks without waiting for them."""
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


# `spawn` takes a coroutine; `main` may return any awaitable.
async def _main(main: Callable[[Lifecycle], Awaitable[None]], lifecycle: Lifecycle) -> None:
    await main(lifecycle)


def _on_signal(lifecycle: Lifecycle, signal_number: signal.Signals) -> None:
    if lifecycle.stopping.is_set():
        logger.warning("service_aborted", signal=signal_number.name)
        os._exit(128 + signal_number)
    logger.info("service_stop_requested", signal=signal_number.name)
    lifecycle.stop()


# Task groups nest, and so do their failures. What a person needs are the errors themselves.
def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves
