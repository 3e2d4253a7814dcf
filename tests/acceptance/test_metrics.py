"""What each service shows of one turn with a tool, on real processes: that everything documented is there, and that
what happened is counted where it happened.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from reference.metrics import MetricReference, reference
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import FOLD_VERSION
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing
from services.cli.local.embedded import Running, free_port
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka]
# Its own broker: what is counted begins with what others have left on a shared one.

SCRIPT = r"""
rules:
  - match: {last_user: ".", steps: 0}
    calls: [{tool: shell, args: {command: "echo counted"}}]
  - match: always
    text: Done.
"""
TOOLS = "builtin: [shell]"
VERSION = importlib.metadata.version("threadlog")
FOLD = str(FOLD_VERSION)
QUICK = {"THREADLOG_OPS_REFRESH_SECONDS": "0.5"}

Sample = tuple[str, frozenset[tuple[str, str]]]
Shown = dict[Sample, float]


async def scrape(running: System, service: str) -> tuple[set[str], Shown]:
    """The names of its metrics, and its samples."""
    async with httpx2.AsyncClient() as http:
        port = running.supervisor.probes_port(service)
        answer = await http.get(f"http://127.0.0.1:{port}/metrics")
        assert (await http.get(f"http://127.0.0.1:{port}/livez")).text == "ok\n"
    families = list(text_string_to_metric_families(answer.text))
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return names, {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


async def until(running: System, service: str, holds: Callable[[Shown], bool]) -> Shown:
    shown: Shown = {}
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                _, shown = await scrape(running, service)
                if holds(shown):
                    return shown
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{service} does not come to show it: {shown}") from None


def value(shown: Shown, name: str, **labels: str) -> float:
    return shown.get((f"threadlog_{name}", frozenset(labels.items())), 0.0)


def documented(service: str) -> list[MetricReference]:
    return [metric for section in reference() if service in section.services for metric in section.metrics]


@pytest.fixture(scope="module")
async def running(
    own_kafka: Running, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder: Path = tmp_path_factory.mktemp("metrics")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=own_kafka.address, postgres=dsn, script=SCRIPT, tools=TOOLS, environment=QUICK) as found,
        found.client() as client,
    ):
        found.supervisor.start("rollups")
        await found.supervisor.wait_ready("rollups")
        thread = (await client.create_thread(text="count", config={"approval": "never"})).thread
        async for _ in client.follow(thread, until_turn_end=True):
            pass
        await client.create_thread(text="ask me", config={"approval": "always"})
        log = await KafkaLog.open(found.settings, "test")
        key = ThreadKey(TenantId("dev"), ThreadId(thread))
        partition = log.partition_for(key.to_bytes(), await log.partition_count(THREAD_EVENTS.name))
        await log.appender.append(THREAD_EVENTS.name, partition, [Outgoing(b"no slash", b"{}", ())])
        await log.close()
        yield found


@pytest.mark.parametrize("service", ["ingest", "runtime", "tool-executor", "projector", "rollups"])
async def test_a_service_shows_what_the_page_says_and_nothing_else(running: System, service: str) -> None:
    names, _ = await scrape(running, service)
    assert {metric.name for metric in documented(service)} - names == set()
    ours = {name for name in names if name.startswith("threadlog_")}
    assert ours - {metric.name for metric in documented(service)} == set()


async def test_the_projector_counts_records_by_effect_and_kind_and_their_delay(running: System) -> None:
    shown = await until(
        running, "projector", lambda shown: value(shown, "projector_dead_letters_total", fault="bad_key") == 1
    )
    assert value(shown, "projector_records_total", effect="applied", kind="turn.ended") >= 1
    assert value(shown, "projector_records_total", effect="applied", kind="tool_call.finished") >= 1
    assert value(shown, "projector_delay_seconds_count") >= 15
    assert 0 < value(shown, "projector_delay_seconds_sum") / value(shown, "projector_delay_seconds_count") < 60
    assert value(shown, "projector_write_seconds_count") >= 1
    await until(running, "projector", lambda shown: value(shown, "projector_lag_records") == 0)


async def test_the_runtime_counts_decisions_models_and_tokens(running: System) -> None:
    shown = await until(running, "runtime", lambda shown: value(shown, "runtime_model_seconds_count") >= 2)
    assert value(shown, "runtime_decisions_total", kind="turn.ended") >= 1
    assert value(shown, "runtime_model_wait_seconds_count") >= 2
    assert value(shown, "runtime_tokens_total", direction="output") > 0
    assert value(shown, "log_records_appended_total") > 0 and value(shown, "database_seconds_count") > 0
    await until(running, "runtime", lambda shown: value(shown, "runtime_model_calls") == 0)


async def test_the_executor_counts_claims_and_tools(running: System) -> None:
    shown = await until(running, "tool-executor", lambda shown: value(shown, "executor_tool_seconds_count") >= 1)
    assert value(shown, "executor_claims_total", won="true") >= 1 and value(shown, "executor_claim_seconds_count") >= 1
    assert value(shown, "executor_ends_total", outcome="succeeded") >= 1
    assert value(shown, "executor_running_calls") == 0


async def test_ingest_counts_requests_and_what_is_open(running: System) -> None:
    shown = await until(running, "ingest", lambda shown: value(shown, "waiting_approvals") == 1)
    assert value(shown, "open_turns") == 1  # the one that waits for the approval
    assert value(shown, "unknown_calls") == 0
    assert value(shown, "ingest_requests_total", method="POST", status="202") >= 2
    assert value(shown, "ingest_request_seconds_count", method="POST") >= 2
    assert value(shown, "build_info", service="ingest", version=VERSION, fold_version=FOLD) == 1


async def test_the_windows_count_the_effects_that_the_projector_publishes(running: System) -> None:
    shown = await until(running, "rollups", lambda shown: value(shown, "rollups_effects_total") >= 15)
    assert value(shown, "rollups_cells_written_total") >= 1
    await until(running, "projector", lambda shown: value(shown, "projector_effects_behind") == 0)


# A Prometheus


PROMETHEUS = shutil.which("prometheus")
DEPLOY = Path(__file__).parents[2] / "deploy"


def queries() -> list[str]:
    """Of the dashboards, without Grafana's variables."""
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [target["expr"].replace("$__rate_interval", "10s") for target in panel.get("targets", ())]
    return found


@contextlib.asynccontextmanager
async def prometheus(running: System, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The one that is deployed, but for where the services are and how often it looks."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        port = running.supervisor.probes_port(job["job_name"].removeprefix("threadlog-"))
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
    assert PROMETHEUS is not None
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}") as http:
            yield http
    finally:
        process.terminate()
        await process.wait()


async def asked(http: httpx2.AsyncClient, path: str, **params: str) -> Any:
    try:
        answer = await http.get(f"/api/v1/{path}", params=params)
    except httpx2.TransportError:
        return None
    return answer.json()["data"] if answer.status_code == 200 else None


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not on the PATH; Debian has it in the package prometheus")
async def test_a_prometheus_takes_all_of_it_and_has_no_alert_but_those_of_what_was_done(
    running: System, tmp_path: Path
) -> None:
    async with prometheus(running, tmp_path) as http, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            targets, rules = await asked(http, "targets"), await asked(http, "rules")
            if targets and [target["health"] for target in targets["activeTargets"]] == ["up"] * 5:
                every = [rule for group in rules["groups"] for rule in group["rules"]]
                if all(rule["health"] != "unknown" for rule in every):
                    break
            await asyncio.sleep(0.2)
        assert [(rule["name"], rule.get("lastError")) for rule in every if rule["health"] != "ok"] == []
        firing = {rule["name"] for rule in every if rule["state"] == "firing"}
        assert firing <= {"ThreadlogDeadLetters"}  # the record without a slash in its key
        shown = {query: await asked(http, "query", query=query) for query in queries()}
        assert [query for query, data in shown.items() if data is None] == []
        assert (await asked(http, "query", query="max(threadlog_waiting_approvals)"))["result"][0]["value"][1] == "1"
