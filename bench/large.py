"""What a projector and a rebuild hold of 1,000,000 events of 50,000 threads: the most resident memory they ever had."""

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.history import RECORDS_PER_THREAD, append_threads
from bench.system import Bench
from services.chassis.kafka.kafka_log import KafkaLog

THREADS = 50_000
REBUILD_SECONDS_MAX = 600.0
KIB_PER_MIB = 1_024


@dataclass(frozen=True, slots=True)
class Large:
    events: int
    projector_mib: float
    projector_events_per_second: float
    """Written and projected at the same time, by the projector that runs."""
    rebuild_mib: float
    rebuild_events_per_second: float


async def measure_large(bench: Bench) -> Large:
    log = await KafkaLog.open(bench.system.settings, "bench-large")
    try:
        begun = time.perf_counter()
        events = await append_threads(log, THREADS, tenant="bench-large")
        await bench.all_shown()
        projected = events / (time.perf_counter() - begun)
    finally:
        await log.close()
    assert events == THREADS * RECORDS_PER_THREAD
    projector_mib = _peak_mib(bench.system.supervisor.pid("projector") or 0)
    begun = time.perf_counter()
    rebuild_mib = await _rebuild_mib(bench)
    return Large(events, projector_mib, projected, rebuild_mib, events / (time.perf_counter() - begun))


async def _rebuild_mib(bench: Bench) -> float:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "services.cli", "rebuild", "--workers", "1", "--no-compare"],
        env={**os.environ, **bench.system.environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    peak = 0.0
    async with asyncio.timeout(REBUILD_SECONDS_MAX):
        while process.returncode is None:
            peak = max(peak, _peak_mib(process.pid))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout=0.2)
    if process.returncode != 0:
        raise RuntimeError(f"the rebuild ended with status {process.returncode}")
    return peak


def _peak_mib(pid: int) -> float:
    """0 where the process is gone, and on systems that do not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / KIB_PER_MIB for line in lines if line.startswith("VmHWM:")), 0.0)
