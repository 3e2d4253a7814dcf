"""`threadlog verify`: what it tells people and programs, and how it exits."""

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli import verify as verify_module
from services.cli.__main__ import app
from services.projector.verification.report import Finding, Report
from services.projector.verification.verify import VerifyError


def _reporting(monkeypatch: pytest.MonkeyPatch, found: Report | BaseException) -> None:
    async def verify(thread: str | None, accept: list[str]) -> Report:
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(verify_module, "_verify", verify)


def _report(*findings: Finding) -> Report:
    report = Report(3, records=40, rows={"events": 39, "turns": 2}, seconds=1.25)
    for finding in findings:
        report.add(finding)
    return report


ALTERED = Finding(
    "view",
    "events.effect is not what the log comes to",
    "acme",
    "t-1",
    "events",
    {"tenant": "acme", "thread": "t-1", "seq": 7},
    "effect",
    "applied",
    "x" * 500,
)
FORGED = Finding("chain", "the end of a turn names another chain", "acme", "t-2", key={"partition": 1, "offset": 4})


def test_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    _reporting(monkeypatch, _report())
    run = CliRunner().invoke(app, ["verify", "--all"])
    assert run.exit_code == 0
    assert run.stdout.splitlines() == [
        "all threads: 40 records of the log, up to where generation 3 is",
        "compared 41 rows in 1.2 s",
        "the views equal the log",
    ]


def test_different(monkeypatch: pytest.MonkeyPatch) -> None:
    _reporting(monkeypatch, _report(FORGED, ALTERED, ALTERED))
    run = CliRunner().invoke(app, ["verify", "--all"])
    assert run.exit_code == 1
    told = run.stdout
    assert "3 differences; the first:\n  chain: the end of a turn names another chain\n" in told
    assert "    at tenant acme, thread t-2, partition 1, offset 4\n" in told
    assert "    at tenant acme, thread t-1, seq 7\n    the log has  applied\n" in told
    assert "the view has " + "x" * 200 + "…" in told
    assert told.endswith("in all: chain 1, view 2 (events 2)\n")


def test_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    _reporting(monkeypatch, _report(FORGED, ALTERED))
    run = CliRunner().invoke(app, ["verify", "--all", "--json"])
    assert run.exit_code == 1
    told = json.loads(run.stdout)
    assert (told["ok"], told["findings"], told["first"]["check"]) == (False, 2, "chain")
    assert [finding["view"] for finding in told["firsts"]] == [None, "events"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(VerifyError("there are no views"), 2), (OSError("no database"), 2), (asyncio.CancelledError(), 143)],
)
def test_not_verified(monkeypatch: pytest.MonkeyPatch, error: Any, status: int) -> None:
    _reporting(monkeypatch, error)
    run = CliRunner().invoke(app, ["verify", "--all"])
    assert run.exit_code == status
    assert run.stdout == ""
    if status == 2:
        assert f"it could not be verified: {error}" in run.stderr


@pytest.mark.parametrize("arguments", [[], ["--all", "--thread", "acme/t-1"]])
def test_one_thread_or_all(arguments: list[str]) -> None:
    run = CliRunner().invoke(app, ["verify", *arguments])
    assert run.exit_code == 2 and "--thread TENANT/THREAD" in run.stderr


def test_a_thread_is_named_with_its_tenant() -> None:
    run = CliRunner().invoke(app, ["verify", "--thread", "t-1"])
    assert run.exit_code == 2 and "is not tenant/thread" in run.stderr
