import subprocess
import sys

import orjson

PROGRAM = """
import logging, sys
import structlog
from services.chassis.process.telemetry import configure_logging

early = structlog.get_logger()
configure_logging(sys.argv[1], "runtime", "runtime-0", "info")
early.info("turn_ended", thread="t/a", seconds=1.5)
early.debug("not_shown")
password = "hunter" + "2"
try:
    raise ValueError("broken")
except ValueError:
    early.exception("turn_failed")
logging.getLogger("library").info("not shown")
logging.getLogger("library").warning("careful: %s", "odd")
"""


def run(log_format: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True
    ).stderr


def test_json_lines() -> None:
    lines = [orjson.loads(line) for line in run("json").splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("turn_ended", "info"),
        ("turn_failed", "error"),
        ("library_log", "warning"),
    ]
    assert all((line["service"], line["instance"]) == ("runtime", "runtime-0") for line in lines)
    assert (lines[0]["thread"], lines[0]["seconds"]) == ("t/a", 1.5)
    assert lines[0]["timestamp"].endswith("Z")
    assert lines[1]["exception"][0]["exc_value"] == "broken"
    assert (lines[2]["library"], lines[2]["message"]) == ("library", "careful: odd")


def test_console_lines() -> None:
    shown = run("console")
    assert "turn_ended" in shown
    assert "ValueError: broken" in shown
    assert "not_shown" not in shown


def test_values_of_variables_are_not_told() -> None:
    assert "hunter2" not in run("json") + run("console")


def test_what_a_library_says_again_and_again_is_told_once_in_a_while() -> None:
    program = """
import logging
from services.chassis.process import telemetry
telemetry.configure_logging("json", "runtime", "runtime-0")
library = logging.getLogger("library")
for number in range(50):
    library.warning("away: %s", number)
library.error("another")
try:
    raise ValueError("broken")
except ValueError:
    library.exception("failed")
    library.exception("failed")
telemetry.LIBRARY_REPEAT_SECONDS = 0
library.warning("away: %s", 50)
for number in range(2 * telemetry.LIBRARY_TEXTS_MAX):
    library.warning(f"{number}")
    assert len(logging.getLogger().handlers[0]._told) <= telemetry.LIBRARY_TEXTS_MAX
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    lines = [orjson.loads(line) for line in told.splitlines()][:5]
    assert [(line["message"], line.get("left_out")) for line in lines] == [
        ("away: 0", None),
        ("another", None),
        ("failed", None),
        ("failed", None),
        ("away: 50", 49),
    ]
