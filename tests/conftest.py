"""Fixtures that need a broker or a database, and what the run says about them at its end.

    kafka_bootstrap   str, one broker per run         own_kafka    Running, a broker for one test module alone
    postgres_dsn      str, one server per run         fresh_database    str, a new empty database for each test

Services start when the first test asks for them. With xdist the workers share those of the controller, which starts
them beforehand, unless only folders without services are run. Topics have fixed names: tests on the shared broker
keep apart by thread, or take `own_kafka`.
"""

import contextlib
import os
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from xdist.scheduler import LoadScopeScheduling

from services.cli.local.embedded import Running
from tests.support.processes.services import NoKafkaError, choose_kafka, database, kafka, postgres
from tests.support.running.depth import DEPTHS, times_longer
from tests.support.running.durations import Durations, file_of
from tests.support.running.order import is_unit_test, rank, units_in_order
from tests.support.running.progress import Progress

TESTS = Path(__file__).parent
WITHOUT_SERVICES = (TESTS / "unit", TESTS / "property", TESTS / "simulation")
IS_CI = os.environ.get("CI") == "true"
PROPERTY_TIMEOUT_SECONDS = 1_800
NEEDS_APACHE = "needs Apache Kafka; this run has the embedded broker"

WITH_OWN_KAFKA = {
    "tests/acceptance/test_artifacts.py",
    "tests/acceptance/test_import.py",
    "tests/acceptance/test_lineage.py",
    "tests/acceptance/test_metrics.py",
    "tests/integration/test_dead_letters.py",
    "tests/integration/test_effects.py",
    "tests/integration/test_partitions.py",
    "tests/integration/test_projector_loop.py",
    "tests/integration/test_services.py",
    "tests/integration/test_verify.py",
}
"""So that only one worker starts such a broker."""
SYSTEMS = "whole systems on the shared broker"
"""Their services have the same names in the same consumer groups: two systems at once would push each other out."""
STARTS_ITS_OWN_BROKER = {
    *("test_artifacts.py", "test_chaos.py", "test_demo.py", "test_dev.py", "test_import.py", "test_lineage.py"),
    *("test_metrics.py", "test_rebuild_proof.py"),
}
"""Of the acceptance tests; the others share one. Among these are those that ask of a whole log: `threadlog verify --all`
rightly names the record that `test_bad_input.py` gives a wrong hash, and `threadlog artifacts check` what threads of
other systems name, whose artifacts are in folders of their own.
"""

PROFILE = os.environ.get("THREADLOG_HYPOTHESIS_PROFILE", "default")
DEPTH = DEPTHS[PROFILE]
MACHINE_EXAMPLES = DEPTH.machine_examples
hypothesis.settings.register_profile(
    PROFILE, max_examples=DEPTH.examples, deadline=None, print_blob=PROFILE != "default"
)
hypothesis.settings.load_profile(PROFILE)


class Services:
    """What this run has started; in a worker of xdist, what the controller has started for all."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        self._kafka: Running | None = None
        self._postgres: Running | None = None
        self.instead_of_apache = given.get("instead_of_apache", "")
        """Why the broker is the embedded one; empty where it is Apache Kafka."""

    def new_folder(self) -> Path:
        if self._folder is None:
            # First on the stack, so that it goes last; not below pytest's own temporary folders, since those are kept.
            made = tempfile.TemporaryDirectory(prefix="threadlog-test-", ignore_cleanup_errors=True)
            self._folder = Path(self._stack.enter_context(made))
            self._folder.chmod(0o755)  # Postgres runs as another user where we are root
        return Path(tempfile.mkdtemp(dir=self._folder))

    def kafka(self) -> str:
        if "kafka" in self._given:
            return self._given["kafka"]
        if self._kafka is None:
            choice = choose_kafka(is_must=IS_CI)
            self.instead_of_apache = "" if choice.is_apache else choice.reason
            self._kafka = self._stack.enter_context(kafka(self.new_folder(), choice))
        return self._kafka.address

    def postgres(self) -> str:
        if "postgres" in self._given:
            return self._given["postgres"]
        if self._postgres is None:
            self._postgres = self._stack.enter_context(postgres(self.new_folder()))
        return self._postgres.address

    def for_workers(self) -> dict[str, str]:
        given = {"kafka": self.kafka(), "postgres": self.postgres()}
        return given | {"instead_of_apache": self.instead_of_apache}

    def versions(self) -> list[str]:
        return [running.version for running in (self._kafka, self._postgres) if running is not None]

    def stop(self) -> None:
        self._stack.close()


SERVICES = pytest.StashKey[Services]()
DURATIONS = pytest.StashKey[Durations]()


def pytest_configure(config: pytest.Config) -> None:
    worker_input: dict[str, Any] = getattr(config, "workerinput", {})
    services = Services(worker_input.get("threadlog_services", {}))
    config.stash[SERVICES] = services
    config.stash[DURATIONS] = Durations.read()
    if not worker_input:
        config.pluginmanager.register(_Watching(config), "threadlog-progress")
    config.add_cleanup(services.stop)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Of xdist: the controller is about to start a worker."""
    if not _runs_without_services(node.config):
        try:
            node.workerinput["threadlog_services"] = node.config.stash[SERVICES].for_workers()
        except NoKafkaError as error:
            pytest.exit(str(error), returncode=1)


class _Scheduling(LoadScopeScheduling):
    """Tests that share a broker run in one worker, everything else wherever there is room, in the order of
    `tests.support.running.order`. The controller has node ids alone to go by; marks for groups do not reach it with
    every version of pytest.
    """

    _is_in_order = False

    def _split_scope(self, nodeid: str) -> str:
        path = file_of(nodeid)
        if path in WITH_OWN_KAFKA or is_unit_test(nodeid):
            return path
        return SYSTEMS if _is_system_on_the_shared_broker(path) else nodeid

    def _assign_work_unit(self, node: Any) -> None:
        if not self._is_in_order:
            self._is_in_order = True
            durations = self.config.stash[DURATIONS]
            tests = {unit: list(work) for unit, work in self.workqueue.items()}
            seconds = {nodeid: durations.of(nodeid) for work in tests.values() for nodeid in work}
            for unit in units_in_order(list(self.workqueue), tests, seconds):
                self.workqueue.move_to_end(unit)
        super()._assign_work_unit(node)


def _is_system_on_the_shared_broker(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.endswith("acceptance") and name not in STARTS_ITS_OWN_BROKER


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        path = item.nodeid.partition("::")[0]
        if "own_kafka" in fixtures and path not in WITH_OWN_KAFKA:
            raise pytest.UsageError(f"{path} takes own_kafka: it belongs to WITH_OWN_KAFKA in {__file__}")
        if "/acceptance/" in path and ("kafka_bootstrap" in fixtures) != _is_system_on_the_shared_broker(path):
            raise pytest.UsageError(f"{path}: STARTS_ITS_OWN_BROKER in {__file__} says otherwise")
        if item.path.is_relative_to(TESTS / "property") and not DEPTH.is_endless:
            item.add_marker(pytest.mark.timeout(PROPERTY_TIMEOUT_SECONDS))


class _Watching:
    """Of the process that the user sees: shows how far the run is, and measures how long tests take."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._progress: Progress | None = None
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._start([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if self._progress is None:
            self._start(ids)

    def _start(self, nodeids: list[str]) -> None:
        durations = self._config.stash[DURATIONS]
        self._progress = Progress(nodeids, lambda each: durations.of(each) * times_longer(each, DEPTH), self._tell)
        if self._progress.is_long:
            self._progress.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown" and self._progress is not None:
            self._progress.done(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._config.option.write_durations:
            self._config.stash[DURATIONS].renewed(self._seconds).write(self._config.rootpath)

    def _tell(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            is_amid_a_line = reporter._tw.width_of_current_line > 0  # dots; reporter.ensure_newline() does not see them
            reporter.write_line(f"\n{line}" if is_amid_a_line else line)
            reporter.flush()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="renew tests/durations.json from this run")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kafka") is not None:
        services = item.config.stash[SERVICES]
        services.kafka()
        if services.instead_of_apache:
            pytest.skip(NEEDS_APACHE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    network.is_off = any(item.path.is_relative_to(folder) for folder in WITHOUT_SERVICES)
    try:
        return (yield)
    finally:
        network.is_off = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    services = config.stash[SERVICES]
    if services.versions():
        terminalreporter.write_line(f"Ran on {' and '.join(services.versions())}.")
    if not services.instead_of_apache:
        return
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NEEDS_APACHE in str(report.longrepr)]
    terminalreporter.section("NOT RUN ON APACHE KAFKA", red=True, bold=True)
    terminalreporter.write_line(services.instead_of_apache)
    terminalreporter.write_line(f"{len(skipped)} tests need Apache Kafka and were skipped:", red=True, bold=True)
    for report in skipped:
        terminalreporter.write_line(f"  {report.nodeid}")


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[SERVICES].kafka()


@pytest.fixture(scope="session")
def postgres_dsn(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[SERVICES].postgres()


@pytest.fixture(scope="module")
def own_kafka(pytestconfig: pytest.Config) -> Iterator[Running]:
    """A broker without topics that nobody else uses: `.address`, and `.pid` for those who kill it."""
    choice = choose_kafka(is_must=IS_CI, is_own=True)
    with kafka(pytestconfig.stash[SERVICES].new_folder(), choice) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def fresh_database(postgres_dsn: str) -> AsyncIterator[str]:
    async with database(postgres_dsn) as dsn:
        yield dsn


class _Network:
    """Lets a test that claims to be pure fail where it connects to anything but a Unix socket."""

    is_off = False

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.connect" and self.is_off:
            connecting, address = arguments
            if isinstance(connecting, socket.socket) and connecting.family != socket.AF_UNIX:
                raise AssertionError(f"Unit and property tests use no network; this one connects to {address}.")


network = _Network()
sys.addaudithook(network.audit)


def _runs_without_services(config: pytest.Config) -> bool:
    folders = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    return all(any(folder.is_relative_to(pure) for pure in WITHOUT_SERVICES) for folder in folders)
