"""Which files there are, what lies beside them, and which tool wrote them."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.importer.companions import FolderCompanions, NoCompanions, candidates
from services.importer.detect import HEAD_BYTES, detect, wrong_tool
from services.importer.model import Parent
from services.importer.report import FileReport, ThreadReport, note_parents
from services.importer.sessions import ReadLimits, dry_run, read_titles, scan
from services.importer.source_files import PathError, SessionFile, find_files
from tests.support.sessions.made import write_claude, write_codex

NOBODY = 65534


def line(**record: object) -> bytes:
    return json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize(
    ("head", "kind", "tool"),
    [
        (b"", "empty", None),
        (b"\n \n", "no session", None),
        (b"\x7fELF\x00\x01", "no session", None),
        (b"just text\nand more\n", "no session", None),
        (b'{"a":1}\n{"b":2}\n', "no session", None),
        (b"[1]\n", "no session", None),
        (line(type="session_meta", payload={"id": "x"}), "session", "codex"),
        (line(record_type="state"), "session", "codex"),
        (line(id="x", timestamp="t", instructions=None), "session", "codex"),
        (line(type="message", role="user", content=[]), "session", "codex"),
        (line(type="user", uuid="u", parentUuid=None, sessionId="s"), "session", "claude-code"),
        (line(type="summary", summary="s", leafUuid="u"), "session", "claude-code"),
        (b"not json\n" + line(type="session_meta", payload={}), "session", "codex"),
        (line(id="x", thread_name="n", updated_at="t"), "index", "codex"),
        (line(session_id="x", ts=1, text="t"), "index", "codex"),
        (line(display="x", project="p", timestamp=1), "index", "claude-code"),
        (b'{"timestamp":"2026-01-01T00:00:00Z","ordinal":0,"type":"session_meta","payload":{"x":"', "session", "codex"),
        (b'{"parentUuid":null,"sessionId":"s","message":"', "session", "claude-code"),
    ],
)
def test_the_beginning_tells_what_a_file_is(head: bytes, kind: str, tool: str | None) -> None:
    found = detect(head)
    assert (found.kind, found.tool) == (kind, tool)
    assert (found.reason is None) == (kind == "session")


def test_another_tools_session_is_refused_with_the_right_command() -> None:
    reason = wrong_tool(detect(line(type="session_meta", payload={})), "claude-code")
    assert reason == "it is of Codex: import it with `threadlog import codex`"
    assert wrong_tool(detect(b""), "codex") is None


def test_a_data_folder_holds_sessions_in_known_places_alone(tmp_path: Path) -> None:
    for name in ("sessions/2026/a.jsonl", "archived_sessions/b.jsonl", "session_index.jsonl", "log/c.jsonl", "x.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
    names = [Path(file.name).relative_to(tmp_path).as_posix() for file in find_files([tmp_path], "codex")]
    assert names == ["archived_sessions/b.jsonl", "session_index.jsonl", "sessions/2026/a.jsonl"]
    everywhere = find_files([tmp_path], "claude-code")
    assert len(everywhere) == 4, "a folder that is no data folder of the tool is looked through"


def test_a_file_that_is_named_twice_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    assert len(find_files([path, tmp_path, tmp_path / "." / "a.jsonl"], "codex")) == 1


def test_what_cannot_be_imported_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="There is no"):
        find_files([tmp_path / "missing"], "codex")
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(b"")
    with pytest.raises(PathError, match="more than 2 files"):
        find_files([tmp_path], "codex", files_max=2)


def test_companions_are_found_in_the_folder_beside_and_flattened(tmp_path: Path) -> None:
    session = tmp_path / "s1.jsonl"
    companions = FolderCompanions(session, {"leaf": "s0"}, bytes_max=10)
    assert companions.get("tool-results/x.txt") is None
    for path, content in (
        (tmp_path / "s1--tool-results-x.txt", b"flat"),
        (tmp_path / "tool-results" / "x.txt", b"beside"),
        (tmp_path / "s1" / "tool-results" / "x.txt", b"folder"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        blob = companions.get("tool-results/x.txt")
        assert blob is not None and blob.content == content and blob.media_type == "text/plain"
    (tmp_path / "large.bin").write_bytes(b"x" * 11)
    assert companions.get("large.bin") is None
    assert (companions.session_with_leaf("leaf"), companions.session_with_leaf("other")) == ("s0", None)
    assert candidates(session, "subagents/a.jsonl")[-1].name == "s1--a.jsonl"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", ""])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    assert candidates(tmp_path / "s.jsonl", name) == []


def test_nothing_lies_beside_what_comes_alone() -> None:
    nothing = NoCompanions("x.jsonl")
    assert (nothing.name, nothing.get("a"), nothing.session_with_leaf("u")) == ("x.jsonl", None, None)


def test_files_of_every_kind_are_reported_and_none_stops_the_others(tmp_path: Path) -> None:
    write_codex(tmp_path / "a.jsonl", 2)
    write_claude(tmp_path / "b.jsonl", 1)
    (tmp_path / "c.jsonl").write_bytes(b"")
    (tmp_path / "d.jsonl").write_bytes(b"\x00\x01" * 100)
    (tmp_path / "e.jsonl").write_bytes(line(id="made", thread_name="A name", updated_at="t") + b"torn")
    reports = [report.to_json() for report in dry_run(find_files([tmp_path], "codex"), "codex", ReadLimits())]
    problems = [report.get("problem") for report in reports]
    assert problems == [
        None,
        "it is of Claude Code: import it with `threadlog import claude-code`",
        None,
        "it is no text: it holds zero bytes",
        None,
    ]
    assert '"title": "A name"' in json.dumps(reports[0]["threads"])
    assert [report["bad_lines"] for report in reports] == [0, 0, 0, 0, 1]
    assert list(reports[0]) == ["file", "tool_version", "threads", "records", "not_understood", "bad_lines"]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    write_codex(path, 600)
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    [report] = dry_run(find_files([path], "codex"), "codex", ReadLimits())
    assert report.problem is not None and report.problem.startswith(f"it has {2 << 30} bytes, more than {1 << 30}")
    assert report.threads == []


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    missing = SessionFile(tmp_path / "gone.jsonl", "gone.jsonl", 1)
    [report] = dry_run([missing], "codex", ReadLimits())
    assert report.problem is not None and report.problem.startswith("it cannot be read")


def test_parents_are_read_before_what_began_later(tmp_path: Path) -> None:
    for name, day in (("a", "03"), ("b", "01"), ("c", "02")):
        (tmp_path / f"{name}.jsonl").write_bytes(line(type="session_meta", timestamp=f"2026-01-{day}", payload={}))
    found = scan(find_files([tmp_path], "codex"), "codex")
    first = [scanned.file.path.stem for scanned in found.files]
    assert first == ["a", "b", "c"], "json with spaces tells no time; then by name"
    for name, day in (("a", "03"), ("b", "01"), ("c", "02")):
        content = f'{{"timestamp":"2026-01-{day}","type":"session_meta","payload":{{}}}}\n'
        (tmp_path / f"{name}.jsonl").write_text(content)
    found = scan(find_files([tmp_path], "codex"), "codex")
    assert [scanned.file.path.stem for scanned in found.files] == ["b", "c", "a"]


def test_the_last_name_of_a_session_counts(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    path.write_bytes(
        line(id="s", thread_name="old", updated_at="t") + line(id="s", thread_name="new", updated_at="t") + b"[]\n"
    )
    assert read_titles(path) == {"s": "new"}


def test_only_the_beginning_is_looked_at() -> None:
    assert detect((b" " * 100 + b"\n") * (HEAD_BYTES // 101)).kind == "no session"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Not below pytest's own folders, which are closed to others."""
    with tempfile.TemporaryDirectory(prefix="threadlog-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_cannot_be_looked_into_is_told_and_what_is_no_file_passed_over(open_folder: Path) -> None:
    """By a process without rights: as root, everything may be read."""
    write_codex(open_folder / "a.jsonl", 1)
    (open_folder / "loop.jsonl").symlink_to("loop.jsonl")
    (open_folder / "nowhere.jsonl").symlink_to("missing")
    (open_folder / "round").symlink_to(".")
    (open_folder / "folder.jsonl").mkdir()
    os.mkfifo(open_folder / "pipe.jsonl")
    for name in ("shut", "half"):
        (open_folder / name).mkdir()
        write_codex(open_folder / name / "b.jsonl", 1)
        (open_folder / name).chmod(0o444 if name == "half" else 0)
    try:
        told = told_as_nobody(open_folder)
    finally:
        for name in ("shut", "half"):
            (open_folder / name).chmod(0o755)
    denied = "it cannot be read: Permission denied"
    assert told == {"a.jsonl": None, "half/b.jsonl": denied, "shut": denied}


def told_as_nobody(folder: Path) -> dict[str, str | None]:
    """The problem of each file in a dry run."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            reports = dry_run(find_files([folder], "codex"), "codex", ReadLimits())
            told = {str(Path(report.file).relative_to(folder)): report.problem for report in reports}
            os.write(writer, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, str | None] = json.loads(content)
    return found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "There is no"),
        ("loop", "There is no"),
        ("pipe", "is no file and no folder"),
        ("empty", "There is no session's file"),
    ],
)
def test_a_path_without_sessions_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PathError, match=why):
        find_files([tmp_path / name], "codex")


def test_a_dry_run_tells_of_parents_what_an_import_would() -> None:
    """Of forks by reference, copies and sub-agents, with and without what they come from."""
    reduced = Path(__file__).resolve().parents[2] / "support" / "sessions" / "codex"

    def notes(*names: str) -> list[str]:
        files = find_files([reduced / f"{name}.jsonl" for name in names], "codex")
        return [note for report in dry_run(files, "codex", ReadLimits()) for note in report.notes]

    [waits] = notes("0.171_fork-by-reference")
    assert "01a22812-d584-7e83-9719-9c764c7c87ec" in waits and "import that one" in waits
    [copy] = notes("0.118_fork-by-copy")
    assert copy.endswith("so it is imported whole")
    [child] = notes("0.171_subagent-child")
    assert child.endswith("so it is imported by itself")
    assert notes("0.171_fork-by-reference", "0.171_interrupt-compact-steer") == []
    assert notes("0.171_subagent-child", "0.171_subagent-parent") == []


def test_who_works_for_a_fork_that_waits_is_imported_by_itself() -> None:
    fork = ThreadReport("fork", Parent("missing", "fork"), is_empty=False)
    child = ThreadReport("child", Parent("fork", "child"), is_empty=False)
    files = [FileReport("fork.jsonl", threads=[fork]), FileReport("child.jsonl", threads=[child])]
    note_parents(files)
    assert [len(file.notes) for file in files] == [1, 1]
    assert "so it is imported by itself" in files[1].notes[0]
