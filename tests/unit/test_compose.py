"""docker-compose.yml and deploy/, as far as they can be judged without a Docker engine."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.core
import typer.main
import yaml

from tests.support.processes.services import KAFKA_IMAGE

ROOT = Path(__file__).parents[2]
TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
SCALAR = {"type": "string"}  # a bare number or boolean is read differently by different versions of Compose
SERVICE = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string", "pattern": "^[a-z0-9./-]+:[A-Za-z0-9._-]+$"},
        "build": {
            "type": "object",
            "required": ["context", "dockerfile"],
            "additionalProperties": False,
            "properties": {"context": SCALAR, "dockerfile": SCALAR},
        },
        "command": TEXTS,
        "environment": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        "volumes": TEXTS,
        "restart": {"enum": ["unless-stopped"]},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "healthcheck": {
            "type": "object",
            "required": ["test", "interval", "timeout", "retries"],
            "additionalProperties": False,
            "properties": {"test": TEXTS, "interval": SCALAR, "timeout": SCALAR, "retries": {"type": "integer"}},
        },
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "additionalProperties": False,
                "properties": {"condition": {"enum": ["service_healthy", "service_completed_successfully"]}},
            },
        },
    },
}
COMPOSE = {
    "type": "object",
    "required": ["services", "volumes"],
    "additionalProperties": False,
    "patternProperties": {"^x-": True},
    "properties": {
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
    },
}
Compose = dict[str, Any]


def offences(compose: Compose) -> list[str]:
    found = [error.message for error in jsonschema.Draft202012Validator(COMPOSE).iter_errors(compose)]
    if found:
        return found
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if needed not in services:
                found.append(f"{name} waits for {needed}, which is no service")
            elif how["condition"] == "service_healthy" and "healthcheck" not in services[needed]:
                found.append(f"{name} waits for the health of {needed}, which has no check")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if not (ROOT / source).exists() if source.startswith(".") else source not in compose["volumes"]:
                found.append(f"{name} mounts {source}, which does not exist")
        if "build" in service and not (ROOT / service["build"]["dockerfile"]).is_file():
            found.append(f"{name} is built from a file that does not exist")
    return found


def is_command(words: list[str]) -> bool:
    """Whether `threadlog WORDS` is a command of ours, with arguments that it takes."""
    command = typer.main.get_command(pytest.importorskip("services.cli.__main__").app)
    rest = list(words)
    while isinstance(command, typer.core.TyperGroup):
        if not rest or rest[0] not in command.commands:
            return False
        command = command.commands[rest.pop(0)]
    try:
        command.make_context("threadlog", rest)
    except Exception:  # noqa: BLE001 - Typer's own copy of click has no public name for its usage errors
        return False
    return True


@pytest.fixture
def compose() -> Compose:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(loaded, dict)
    unshared: Compose = json.loads(json.dumps(loaded))  # an anchor is one object in several places
    return unshared


def test_compose_is_sound(compose: Compose) -> None:
    assert offences(compose) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["services", "runtime", "comand"], ["x"]),
        (["services", "kafka", "environment", "KAFKA_NODE_ID"], 1),
        (["services", "ingest", "ports"], ["8080:8080"]),
        (["services", "runtime", "depends_on"], {"nobody": {"condition": "service_healthy"}}),
        (["services", "runtime", "depends_on"], {"prometheus": {"condition": "service_healthy"}}),
        (["services", "runtime", "volumes"], ["nothing:/data"]),
        (["services", "prometheus", "volumes"], ["./deploy/nothing.yml:/etc/prometheus/prometheus.yml:ro"]),
        (["services", "runtime", "build", "dockerfile"], "Dockerfile"),
    ],
)
def test_a_slip_is_found(compose: Compose, path: list[str], value: object) -> None:
    *parents, last = path
    place = compose
    for parent in parents:
        place = place[parent]
    place[last] = value
    assert offences(compose)


def test_commands_exist(compose: Compose) -> None:
    commands = [service["command"] for service in compose["services"].values() if "build" in service]
    assert len(commands) == 7
    assert [words for words in commands if not is_command(words)] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert not is_command(["services", "run"])
    assert not is_command(["topic", "apply"])


def test_kafka_is_the_version_that_tests_run_on(compose: Compose) -> None:
    assert compose["services"]["kafka"]["image"] == KAFKA_IMAGE


def test_prometheus_asks_every_service(compose: Compose) -> None:
    loaded = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = {
        target for job in loaded["scrape_configs"] for entry in job["static_configs"] for target in entry["targets"]
    }
    port = compose["x-settings"]["THREADLOG_PROBES_PORT"]
    running = {name for name, service in compose["services"].items() if service.get("command", [""])[0] == "services"}
    assert targets == {f"{name}:{port}" for name in running}


def test_the_image_copies_what_exists() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+)", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert [path for path in copied if not (ROOT / path).exists()] == []
