"""The report of an import, held against what the README of the recorded sessions tells of each file."""

import pytest
from pydantic import JsonValue

from services.importer.model import Tool
from services.importer.sessions import ReadLimits, dry_run
from services.importer.source_files import find_files
from tests.support.sessions.readme import FOLDER, Told, needs_sessions, told

FOLDERS: dict[Tool, str] = {"codex": "codex", "claude-code": "claude"}
CODEX_ENDS = {
    "complete": {"completed", "failed"},
    "ABORTED": {"aborted"},
    "FAILED": {"failed"},
    "OPEN": {"interrupted"},
}
OUTCOMES: dict[str, set[str]] = {
    "0": {"succeeded"},
    "ok": {"succeeded"},
    "ok(no code)": {"succeeded"},
    "UNFINISHED": {"unknown"},
    "aborted": {"cancelled"},
    "ERROR": {"failed"},
    "error": {"failed"},
    "unsupported": {"failed"},
    "ERROR/user-rejected": {"cancelled"},
    "ERROR/interrupted": {"unknown", "cancelled"},
    "ERROR/permission-rule": {"denied"},
}
"""By the README's words. A result that was written on resuming says that it was interrupted, and not whether it ran."""


@needs_sessions
@pytest.mark.parametrize("tool", FOLDERS)
def test_it_agrees_with_the_readme_in_every_file(tool: Tool) -> None:
    folder = FOLDERS[tool]
    files = find_files([FOLDER / folder], tool)
    reports = {report.file.rpartition("/")[2]: report.to_json() for report in dry_run(files, tool, ReadLimits())}
    table = told(folder)
    assert table
    different = {each.file: found for each in table if (found := differences(each, reports[each.file]))}
    assert different == {}
    assert not any(report["bad_lines"] or report.get("problem") for report in reports.values())


def differences(expected: Told, report: dict[str, JsonValue]) -> list[str]:
    threads = report["threads"]
    assert isinstance(threads, list)
    if "Warmup" in str(expected.turns):
        return [] if threads == [] and report["not_understood"] else ["a warm-up is no session of a person"]
    found: list[str] = []
    if report["records"] != expected.records:
        found.append(f"records: {report['records']} instead of {expected.records}")
    turns = [turn for thread in threads for turn in _list(thread, "turns")]
    if len(turns) != len(expected.turns):
        found.append(f"turns: {len(turns)} instead of {len(expected.turns)}")
    for (prompt, end), turn in zip(expected.turns, turns, strict=False):
        wanted = next((outcomes for word, outcomes in CODEX_ENDS.items() if end.startswith(word)), None)
        if wanted is not None and turn["outcome"] not in wanted:
            found.append(f"{prompt!r} ended {turn['outcome']}, not {end}")
    calls = [(str(call["tool"]), str(call["outcome"])) for thread in threads for call in _list(thread, "calls")]
    if len(calls) != len(expected.calls):
        found.append(f"calls: {len(calls)} instead of {len(expected.calls)}")
    for (tool, outcome), (wanted_tool, words) in zip(calls, expected.calls, strict=False):
        if tool != wanted_tool or outcome not in OUTCOMES.get(words, {"failed"}):
            found.append(f"{tool} {outcome}, not {wanted_tool} {words}")
    unfinished = sum(int(str(thread["unfinished"])) for thread in threads if isinstance(thread, dict))
    if unfinished != expected.unfinished:
        found.append(f"unfinished: {unfinished} instead of {expected.unfinished}")
    return found


def _list(thread: JsonValue, name: str) -> list[dict[str, JsonValue]]:
    assert isinstance(thread, dict)
    found = thread[name]
    assert isinstance(found, list)
    return [each for each in found if isinstance(each, dict)]
