"""`make bench`: on real Kafka and Postgres, all services as processes. Prints a table and writes bench.json."""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from bench.delay import measure_delay
from bench.floor import floor_ms
from bench.imports import ImportMeasured, measure_imports
from bench.kernel import fold_events_per_second
from bench.large import measure_large
from bench.long_thread import measure_long_thread
from bench.memory import measure_memory
from bench.plain_http import PlainTransport
from bench.rebuild import measure_rebuild
from bench.sessions import Measured, effect_in_use, measure
from bench.system import Bench, running
from services.client.client import ThreadlogClient

WORKLOADS = {"1": (1, 150), "1_pure": (1, 150), "16": (16, 1_200), "64": (64, 1_600)}
"""Name: sessions at once, sessions measured."""
DELAYS = {"1": (1, 150), "16": (16, 1_200)}
"""The same, for the delay from the acknowledgement of a record to its rows."""
SWITCH_TRIES = 50
SWITCH_PAUSE_SECONDS = 0.2


async def bench(rounds: int, *, large: bool) -> dict[str, object]:
    by_workload: dict[str, list[Measured]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="threadlog-bench-") as name:
        async with running(Path(name)) as found:
            print(f"{found.kafka_version}, {found.postgres_version}", flush=True)
            async with found.system.client(keyed=False, transport=PlainTransport()) as client:
                floor = await floor_ms(found.system.settings)
                for number in range(rounds):
                    for workload, (concurrent, sessions) in WORKLOADS.items():
                        await _switch(found, client, "pure" if workload == "1_pure" else "unsafe")
                        measured = await measure(found, client, concurrent, sessions)
                        by_workload[workload].append(measured)
                        print(f"round {number + 1}/{rounds} {workload:>7}: {_row(measured)}", flush=True)
                delays = {
                    workload: asdict(await measure_delay(found.system.settings.postgres_dsn, client, *sizes))
                    for workload, sizes in DELAYS.items()
                }
            rebuilt = await measure_rebuild(found)
            long_thread = await measure_long_thread(found)
            memory = await measure_memory(found)
            of_large = asdict(await measure_large(found)) if large else None
        imports = measure_imports()  # in no service: now that they have stopped, it has the machine to itself
        return {
            "kafka_version": found.kafka_version,
            "postgres_version": found.postgres_version,
            "floor_ms": round(floor, 3),
            "sessions": {workload: _median(each) for workload, each in by_workload.items()},
            "delay_to_views": delays,
            "rebuild_events_per_s": {str(workers): round(rate) for workers, rate in rebuilt.by_workers.items()},
            "copy_events_per_s": round(rebuilt.copied),
            "copy_with_indexes_events_per_s": round(rebuilt.copied_with_indexes),
            "long_thread": {what: asdict(compared) for what, compared in long_thread.items()},
            "fold_events_per_s": round(fold_events_per_second()),
            "memory_mib": memory,
            "imports": [asdict(measured) for measured in imports],
            "large": of_large,
            "rounds": rounds,
        }


async def _switch(found: Bench, client: ThreadlogClient, effect: str) -> None:
    for number in range(SWITCH_TRIES):
        if await effect_in_use(client) == effect:
            return
        if number == 0:
            await found.use_effect(effect)
        await asyncio.sleep(SWITCH_PAUSE_SECONDS)
    raise RuntimeError(f"the tool is still not {effect}")


def _row(measured: Measured) -> str:
    return (
        f"{measured.rate:7.1f}/s  p50 {measured.p50_ms:6.1f} ms  p99 {measured.p99_ms:6.1f} ms  "
        f"CPU {measured.cpu_ms:5.2f} ms  {measured.requests_per_session:4.1f} produce requests"
    )


def _median(each: list[Measured]) -> dict[str, object]:
    rows = [asdict(measured) for measured in each]
    names = [name for name in rows[0] if name != "cpu_ms_by_process"]
    medians: dict[str, object] = {name: round(statistics.median(row[name] for row in rows), 3) for name in names}
    medians["cpu_ms_by_process"] = {
        part: round(statistics.median(row["cpu_ms_by_process"][part] for row in rows), 3)
        for part in rows[0]["cpu_ms_by_process"]
    }
    return medians


def _import_row(measured: ImportMeasured) -> str:
    return (
        f"{measured.megabytes:6.1f} MB  {measured.megabytes_per_second:5.1f} MB/s  "
        f"{measured.events_per_second:,} events/s  {measured.resident_megabytes:.1f} MB in memory"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="1,000,000 events more, and the memory that they take")
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    arguments = parser.parse_args()
    gc.freeze()  # the client shares its cores with what it measures
    gc.set_threshold(100_000, 50, 100)
    result = uvloop.run(bench(arguments.rounds, large=arguments.large))
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print_table(result)
    print(f"written to {arguments.output}")
    return 0


def print_table(result: dict[str, Any]) -> None:
    print(f"\nmedians of {result['rounds']} rounds; one produce to consume takes {result['floor_ms']} ms")
    for workload, row in result["sessions"].items():
        by_process = "  ".join(f"{part} {value}" for part, value in row["cpu_ms_by_process"].items())
        print(
            f"{workload:>7}: {row['rate']:7.1f}/s  p50 {row['p50_ms']:6.1f} ms  p99 {row['p99_ms']:6.1f} ms  "
            f"CPU {row['cpu_ms']:5.2f} ms ({by_process})"
        )
    print("\nfrom the acknowledgement of a record to its rows")
    for workload, row in result["delay_to_views"].items():
        print(f"{workload:>7}: p50 {row['p50_ms']:6.1f} ms  p99 {row['p99_ms']:6.1f} ms")
    copied = result["copy_events_per_s"]
    print(
        f"\nevents per second into all views; COPY of the same rows {copied:,}, into indexed tables "
        f"{result['copy_with_indexes_events_per_s']:,}"
    )
    for workers, rate in result["rebuild_events_per_s"].items():
        print(
            f"{workers:>7}: {rate:,} with so many workers, the swap included: {rate / copied:.0%} of COPY, "
            f"{rate / result['copy_with_indexes_events_per_s']:.0%} of COPY into indexed tables"
        )
    print("\na thread with 100 events, one with 100,000")
    for what, row in result["long_thread"].items():
        short, long = row["short_ms"], row["long_ms"]
        print(f"{what:>24}: {short:6.1f} ms  {long:6.1f} ms  {long / short:5.2f}")
    print("\nsession files to events, on one core")
    for row in result["imports"]:
        print(f"{row['tool']:>12} {_import_row(ImportMeasured(**row))}")
    print()
    for name in ("memory_mib", "fold_events_per_s", "large"):
        if result[name] is not None:
            print(f"{name}: {result[name]}")


if __name__ == "__main__":
    sys.exit(main())
