"""The Kafka and the Postgres that tests, the bench and chaos run on; all of it works outside pytest too.

    with apache_kafka(folder) as kafka, postgres(folder) as database:
        connect(kafka.address, database.address)

`kafka` and `postgres` take what the environment names and start something otherwise; `choose_kafka` says what that
would be. Every process ends with its context, and with the process that started it (services/cli/local/supervised.py).
"""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import asyncpg

from services.cli.local.embedded import (
    Running,
    embedded_broker,
    embedded_postgres,
    free_port,
    kafka_answers,
    wait_until,
)
from services.cli.local.supervised import supervised

POM = Path(__file__).parent / "kafka" / "pom.xml"
KAFKA_VERSION = re.findall(r"<artifactId>kafka_2.13</artifactId>\s*<version>(.+)</version>", POM.read_text())[0]
KAFKA_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
KAFKA_VARIABLE = "THREADLOG_TEST_KAFKA"
POSTGRES_VARIABLE = "THREADLOG_TEST_POSTGRES"
POSTGRES_OPTIONS = {"max_connections": "300", "fsync": "off", "full_page_writes": "off"}
"""The server goes with the run, and no test pulls the plug of the machine. Nearly every test drops a database, which is a
checkpoint and takes half a second where it waits for the disk. Tests that kill a server start one of their own.
"""
JAVA_MAJOR_MIN = 17
INSTALL_SECONDS = 600
DOWNLOAD_SECONDS = 900
IMAGE_SECONDS = 600
ARCHIVE_SECONDS = 120
COMPILED_QUICKLY = "-XX:TieredStopAtLevel=1"
JVM_FLAGS = ("-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
START_SECONDS = 300
"""Where it ends by itself that is seen at once; a machine that does much else may take long."""

KafkaKind = Literal["given", "apache", "docker", "embedded"]


class NoKafkaError(RuntimeError):
    """Apache Kafka is a must here and cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class KafkaChoice:
    kind: KafkaKind
    reason: str
    """Why nothing better was chosen."""

    @property
    def is_apache(self) -> bool:
        return self.kind != "embedded"


@contextlib.contextmanager
def kafka(folder: Path, choice: KafkaChoice) -> Iterator[Running]:
    match choice.kind:
        case "given":
            address = os.environ[KAFKA_VARIABLE]
            yield Running(address, f"Kafka of unknown version at {KAFKA_VARIABLE}={address}", 0, folder / "none.log")
        case "apache":
            with apache_kafka(folder, quick_start=True) as running:
                yield running
        case "docker":
            with docker_kafka(folder) as running:
                yield running
        case "embedded":
            with embedded_broker(folder) as running:
                yield running


def choose_kafka(*, is_must: bool, is_own: bool = False) -> KafkaChoice:
    """The best broker that can be had, its jars or image fetched. `is_own`: it must be ours to start and to kill."""
    if os.environ.get(KAFKA_VARIABLE) and not is_own:
        return KafkaChoice("given", "")
    try:
        java()
        kafka_jars()
        return KafkaChoice("apache", "")
    except NoKafkaError as error:
        reason = str(error)
    if docker_answers():
        return KafkaChoice("docker", reason)
    if is_must:
        raise NoKafkaError(f"CI=true asks for Apache Kafka. {reason} No Docker engine answers either.")
    return KafkaChoice("embedded", f"{reason} No Docker engine answers.")


@contextlib.contextmanager
def apache_kafka(
    folder: Path, *, port: int | None = None, heap: str = "512m", quick_start: bool = False
) -> Iterator[Running]:
    """One broker that is its own controller, in one JVM. A `folder` that was used before is started as it was left.
    `quick_start`: compiled less well and with its classes from an archive, for those who start it often. It is there in
    half the time, and uses less of the processor for as long as a run of tests takes.

    Acknowledged means: in the page cache of this machine, as with every Kafka.
    """
    program, jars = java(), kafka_jars()
    compiler = [COMPILED_QUICKLY, *_class_archive(program, jars)] if quick_start else []
    folder.mkdir(parents=True, exist_ok=True)
    bound = free_port() if port is None else port
    properties = folder / "server.properties"
    is_new = not properties.exists()
    if is_new:
        properties.write_text(_server_properties(folder, bound, free_port()))
    elif port is None:
        bound = int(re.findall(r"PLAINTEXT://127\.0\.0\.1:(\d+)", properties.read_text())[0])
    log = folder / "kafka.log"
    flags = [*JVM_FLAGS, "-cp", f"{jars}/*"]
    if is_new:
        # Like Kafka's own ids: url-safe base64 of 16 bytes. One that starts with a dash would be taken for an option.
        cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        storage = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties), "--standalone"]
        _run([program, *(compiler or [COMPILED_QUICKLY]), *flags, *storage], START_SECONDS)
    # What a test wrote is not needed afterwards: no orderly shutdown, which takes seconds.
    command = [program, f"-Xmx{heap}", *compiler, *flags, "kafka.Kafka", str(properties)]
    with supervised(command, log=log, stop_signal=signal.SIGKILL) as process:
        wait_until(lambda: kafka_answers("127.0.0.1", bound), process, "Apache Kafka", START_SECONDS)
        yield Running(f"127.0.0.1:{bound}", f"Apache Kafka {KAFKA_VERSION}", process.pid, log)


@contextlib.contextmanager
def docker_kafka(folder: Path) -> Iterator[Running]:
    folder.mkdir(parents=True, exist_ok=True)
    bound = free_port()
    environment = {
        "NODE_ID": "1",
        "PROCESS_ROLES": "broker,controller",
        "LISTENERS": f"PLAINTEXT://:{bound},CONTROLLER://:9093",
        "ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{bound}",
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        **{name.upper().replace(".", "_"): value for name, value in _SINGLE_NODE.items()},
    }
    command = ["docker", "run", "--rm", "-p", f"127.0.0.1:{bound}:{bound}"]
    for name, value in environment.items():
        command += ["-e", f"KAFKA_{name}={value}"]
    # `docker run` hands SIGTERM on to the container, which --rm then removes.
    with supervised([*command, KAFKA_IMAGE], log=folder / "kafka.log") as process:
        wait_until(lambda: kafka_answers("127.0.0.1", bound), process, KAFKA_IMAGE, IMAGE_SECONDS)
        yield Running(f"127.0.0.1:{bound}", f"Apache Kafka {KAFKA_VERSION} (Docker)", process.pid, process.log)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Running]:
    """The server that THREADLOG_TEST_POSTGRES names (a DSN that may create databases), else an embedded one."""
    given = os.environ.get(POSTGRES_VARIABLE)
    if given:
        version = asyncio.run(_query(given, "SHOW server_version"))
        yield Running(given, f"PostgreSQL {version} at {POSTGRES_VARIABLE}", 0, folder / "none.log")
        return
    with embedded_postgres(folder, options=POSTGRES_OPTIONS) as running:
        yield running


@contextlib.asynccontextmanager
async def database(server_dsn: str) -> AsyncIterator[str]:
    """The DSN of a new, empty database; it is dropped afterwards, whoever is still connected."""
    name = f"test_{uuid.uuid4().hex}"
    await _query(server_dsn, f'CREATE DATABASE "{name}" TEMPLATE template0')
    try:
        yield urlsplit(server_dsn)._replace(path=f"/{name}").geturl()
    finally:
        await _query(server_dsn, f'DROP DATABASE "{name}" WITH (FORCE)')


def kafka_jars() -> Path:
    """Apache Kafka's jars: copied by Maven once into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "threadlog"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        maven = shutil.which("mvn") or _apt_get("mvn", ["maven"])
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            shutil.copy(POM, folder)
            copy = ["-q", "-B", "-f", f"{folder}/pom.xml", "dependency:copy-dependencies"]
            _run([maven, *copy, f"-DoutputDirectory={folder}/libs"], DOWNLOAD_SECONDS)
            Path(folder, "libs").rename(jars)  # whole or not at all
    return jars


def _class_archive(program: str, jars: Path) -> list[str]:
    """Return the JVM's flag for an archive of Kafka's classes, already parsed and verified: a broker starts in half the
    time. It lies beside the jars and is made once for each Java, by a broker that starts and ends in order. Where that
    does not work the list is empty: the archive makes nothing possible that is not possible without.
    """
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    archive = jars.with_name(f"{jars.name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}.jsa")
    if not archive.is_file():
        with jars.with_name("kafka.lock").open("w") as lock, contextlib.suppress(OSError, NoKafkaError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.is_file():
                _make_class_archive(program, jars, archive)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []


def _make_class_archive(program: str, jars: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jars.parent) as made:
        folder, bound = Path(made), free_port()
        properties = folder / "server.properties"
        properties.write_text(_server_properties(folder, bound, free_port()))
        flags = [COMPILED_QUICKLY, *JVM_FLAGS, "-cp", f"{jars}/*"]
        storage = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(properties), "--standalone"]
        _run([program, *flags, *storage], START_SECONDS)
        dumped = folder / "classes.jsa"
        command = [program, f"-XX:ArchiveClassesAtExit={dumped}", *flags, "kafka.Kafka", str(properties)]
        with (folder / "kafka.log").open("w") as log:
            broker = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + ARCHIVE_SECONDS
            while broker.poll() is None and time.monotonic() < deadline and not kafka_answers("127.0.0.1", bound):
                time.sleep(0.1)
            broker.terminate()
            broker.wait(ARCHIVE_SECONDS)
        except subprocess.TimeoutExpired:
            return
        finally:
            broker.kill()
            broker.wait()
        if dumped.is_file():
            dumped.rename(archive)  # whole or not at all


def java() -> str:
    program = shutil.which("java")
    if program is None or _java_major(program) < JAVA_MAJOR_MIN:
        program = _apt_get("java", [f"openjdk-{JAVA_MAJOR_MIN}-jre-headless"], ["default-jre-headless"])
    if _java_major(program) < JAVA_MAJOR_MIN:
        raise NoKafkaError(f"{program} is older than Java {JAVA_MAJOR_MIN}, which Kafka {KAFKA_VERSION} needs.")
    return program


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = ["docker", "info", "--format", "{{.ServerVersion}}"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return asked.returncode == 0 and bool(asked.stdout.strip())
    return False


def _java_major(program: str) -> int:
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


def _apt_get(program: str, *alternatives: list[str]) -> str:
    """Installs the first of `alternatives` that can be had; on Debian and as root only."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoKafkaError(f"There is no usable `{program}` here; install it, or name a broker in {KAFKA_VARIABLE}.")
    sys.stderr.write(f"There is no usable {program} here: apt-get install {' '.join(alternatives[0])}\n")
    apt_get = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    reasons = []
    for packages in alternatives:
        try:
            _run([*apt_get, "update"], INSTALL_SECONDS)
            _run([*apt_get, "install", "-y", "--no-install-recommends", *packages], INSTALL_SECONDS)
        except NoKafkaError as error:
            reasons.append(str(error))
        found = shutil.which(program)
        if found is not None:
            return found
    raise NoKafkaError(f"`{program}` cannot be installed; name a broker in {KAFKA_VARIABLE}. {' '.join(reasons)}")


def _run(command: list[str], seconds: float) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    except subprocess.CalledProcessError as error:
        raise NoKafkaError(f"`{' '.join(command)}` failed: {error.stdout[-2000:]}{error.stderr[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NoKafkaError(f"`{' '.join(command)}` took longer than {seconds:.0f} s.") from error


async def _query(dsn: str, sql: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


_SINGLE_NODE = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests that kill members of a group wait for this; the least that Kafka allows by default is 6 s.
    "group.min.session.timeout.ms": "1000",
    # A topic exists because schemas/topics.py declares it, never because somebody asked for it.
    "auto.create.topics.enable": "false",
}


def _server_properties(folder: Path, port: int, controller_port: int) -> str:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        **_SINGLE_NODE,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())
