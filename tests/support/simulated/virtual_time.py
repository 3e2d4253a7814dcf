"""An event loop whose clock jumps: when nothing is ready, time moves to the next timer at once.

`asyncio.sleep(3600)` takes no time, and a program that waits for nothing but timers and its own tasks runs the same way
every time. Where nothing is ready and nothing is scheduled the program would wait for ever: that raises.

Several processes can live on one loop. What belongs to a process runs in contexts that name its `Host` (whatever is
scheduled from such a context inherits it), so a host can be frozen, as by SIGSTOP: its callbacks, timers and tasks are
held back and run, late and in their order, once it is thawed. One that is frozen for ever was killed.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH_MS = 1_790_000_000_000
CANCELLED_MIN = 100
OWN_FILES = 1
"""That the loop itself listens to, for who wakes it from another thread. Nobody does where time is virtual."""


class StuckError(Exception):
    """Every task waits for something that nobody will do."""


class Host:
    """A process, as the loop knows it."""

    __slots__ = ("held", "is_frozen", "on_step", "steps", "stop_at")

    def __init__(self) -> None:
        self.is_frozen = False
        self.held: list[asyncio.Handle] = []
        """What was due while it was frozen."""
        self.steps = 0
        """Callbacks that have run: between any two of them a task awaits something."""
        self.stop_at = -1
        self.on_step: Callable[[], None] = lambda: None
        """Called after step number `stop_at`."""

    def context(self) -> Context:
        context = copy_context()
        context.run(HOST.set, self)
        return context

    def thaw(self) -> None:
        self.is_frozen = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        held, self.held = self.held, []
        loop.run_soon(held)


HOST: ContextVar[Host | None] = ContextVar("host", default=None)
NOWHERE = Context()
"""For what belongs to no process, such as what a broker does."""


class _Handle(asyncio.Handle):
    """A handle as asyncio makes it when nothing is debugged."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        return self._when < other._when


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        return self._now

    # Scheduling is most of what a simulation does, so these three leave out asyncio's checks for misuse in debug mode.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    def run_soon(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _run_once(self) -> None:
        """In place of asyncio's: without a look at files and sockets where nothing else is to be done, and with hosts."""
        ready, scheduled = self._ready, self._scheduled
        if self._timer_cancelled_count > CANCELLED_MIN and 2 * self._timer_cancelled_count > len(scheduled):
            self._sweep()
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready and (not scheduled or len(self._selector.get_map()) > OWN_FILES):
            self._process_events(self._selector.select(0))
        if not ready:
            if not scheduled:
                raise StuckError("nothing is ready and nothing is scheduled; see asyncio.all_tasks()")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(HOST)
            if host is None:
                handle._run()
            elif host.is_frozen:
                host.held.append(handle)
            else:
                handle._run()
                host.steps += 1
                if host.steps == host.stop_at:
                    host.on_step()

    def _sweep(self) -> None:
        kept = [timer for timer in self._scheduled if not timer._cancelled]
        for timer in self._scheduled:
            timer._scheduled = not timer._cancelled
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self._timer_cancelled_count = 0


class VirtualClock:
    """A Clock that reads the running loop's time; on a real loop it is a clock that starts at the epoch below."""

    def now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
