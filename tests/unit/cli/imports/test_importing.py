import hashlib
import re
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from pydantic import JsonValue
from typer.testing import CliRunner

from services.cli.__main__ import app
from services.cli.imports import importing, uploading
from services.cli.imports.importing import import_files, in_order, parts, prepare
from services.cli.imports.uploading import upload_all, upload_of
from services.client.client import RefusedError, ThreadlogClient, UnreachableError
from services.importer.detect import CLAUDE
from services.importer.sessions import Scanned
from services.importer.source_files import SessionFile, find_files
from tests.unit.client.fake_server import Answer, FakeServer, json_answer

LINE = b'{"timestamp":"%s","type":"session_meta","payload":{"id":"%s"}}\n'
SERVICE = ("http://threadlog.test", None, "dev")


def session(folder: Path, name: str, begins: str = "2026-01-01T00:00:00Z") -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(LINE % (begins.encode(), name.encode()))
    return path


def found_in(folder: Path) -> list[SessionFile]:
    return find_files([folder], "codex")


class Collected:
    def __init__(self) -> None:
        self.reports: list[dict[str, JsonValue]] = []
        self.threads: list[JsonValue] = []

    def uploaded(self, done: int, total: int) -> None: ...

    def imported(self, done: int) -> None: ...

    def file(self, report: dict[str, JsonValue], threads: list[JsonValue]) -> None:
        self.reports.append(report)
        self.threads.extend(threads)

    def problems(self) -> dict[str, JsonValue]:
        return {str(report["file"]).rpartition("/")[2]: report.get("problem") for report in self.reports}


class Service:
    """Keeps what is uploaded, and imports at once."""

    def __init__(self, *, bytes_max: int = 1 << 20) -> None:
        self.kept: dict[str, bytes] = {}
        self.bytes_max = bytes_max
        self.imports: list[dict[str, Any]] = []

    def upload(self, request: httpx2.Request) -> httpx2.Response:
        sha256 = request.url.path.rpartition("/")[2]
        content = request.read()
        if len(content) > self.bytes_max:
            detail = f"An artifact may have {self.bytes_max} bytes."
            return httpx2.Response(413, json={"type": "https://threadlog.dev/problems/too-large", "detail": detail})
        if hashlib.sha256(content).hexdigest() != sha256:
            return httpx2.Response(422, json={"detail": "the bytes have another sha256"})
        self.kept[sha256] = content
        return httpx2.Response(201, json={})

    def answer(self, request: httpx2.Request) -> Answer:
        if request.method == "POST":
            self.imports.append(orjson.loads(request.content))
            return json_answer({"id": str(len(self.imports) - 1), "status": "waiting", "done": 0}, 202)
        number = re.search(r"/v1/imports/(\d+)", str(request.url))
        assert number is not None
        if "/files" not in str(request.url):
            return json_answer({"status": "done", "done": 1, "problem": None})
        files = [file for file in self.imports[int(number[1])]["files"] if not file["companion"]]
        told = [{"path": file["path"], "report": {"file": "", "threads": []}, "threads": []} for file in files]
        return json_answer({"files": told, "next": None})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service()
    monkeypatch.setattr(
        importing, "transport_to", lambda *_: httpx2.AsyncClient(base_url=SERVICE[0], transport=mock(found.upload))
    )
    monkeypatch.setattr(
        importing, "ThreadlogClient", lambda *_, **__: ThreadlogClient(SERVICE[0], transport=FakeServer(found.answer))
    )
    return found


def mock(handle: Any) -> httpx2.MockTransport:
    return httpx2.MockTransport(handle)


# What is wrong with one file


async def test_a_file_that_is_too_large_stops_no_other(service: Service, tmp_path: Path) -> None:
    session(tmp_path, "a")
    (tmp_path / "b.jsonl").write_bytes((LINE % (b"2026-01-01T00:00:01Z", b"b")) * 9)
    service.bytes_max = 200
    collected = Collected()
    await import_files(found_in(tmp_path), "codex", SERVICE, collected)
    assert collected.problems() == {"a.jsonl": None, "b.jsonl": "it was not stored: An artifact may have 200 bytes."}
    assert [file["path"] for file in service.imports[0]["files"]] == ["a.jsonl"]


async def test_what_is_no_session_of_the_tool_is_reported_and_not_uploaded(service: Service, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "binary.jsonl").write_bytes(b"\x00" * 9)
    (tmp_path / "claude.jsonl").write_bytes(b'{"type":"user","sessionId":"s","uuid":"u"}\n')
    collected = Collected()
    await import_files(found_in(tmp_path), "codex", SERVICE, collected)
    assert collected.problems() == {
        "binary.jsonl": "it is no text: it holds zero bytes",
        "claude.jsonl": "it is of Claude Code: import it with `threadlog import claude-code`",
        "empty.jsonl": None,
    }
    assert service.kept == {} and service.imports == []


async def test_a_companion_that_is_too_large_is_left_out_and_said(service: Service, tmp_path: Path) -> None:
    session(tmp_path, "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "whole.txt").write_bytes(b"x" * 300)
    service.bytes_max = 200
    collected = Collected()
    await import_files(found_in(tmp_path), "codex", SERVICE, collected)
    notes = ["whole.txt, which belongs to it: it was not stored: An artifact may have 200 bytes."]
    assert collected.reports[0]["notes"] == notes
    assert [file["path"] for file in service.imports[0]["files"]] == ["a.jsonl"]


async def test_a_session_that_grows_meanwhile_is_uploaded_as_it_was(tmp_path: Path) -> None:
    service, path = Service(), session(tmp_path, "a")
    before = path.read_bytes()
    upload = upload_of(path, "a", tmp_path, companion=False)
    path.write_bytes(before + b'{"more":1}\n')
    async with httpx2.AsyncClient(base_url=SERVICE[0], transport=mock(service.upload)) as transport:
        assert await upload_all(transport, [upload], lambda *_: None) == {}
    assert service.kept == {upload.sha256: before}


@pytest.mark.parametrize("after", [b"", None], ids=["shorter", "gone"])
async def test_a_session_that_shrinks_meanwhile_is_reported(tmp_path: Path, after: bytes | None) -> None:
    path = session(tmp_path, "a")
    upload = upload_of(path, "a", tmp_path, companion=False)
    path.unlink() if after is None else path.write_bytes(after)
    async with httpx2.AsyncClient(base_url=SERVICE[0], transport=mock(Service().upload)) as transport:
        reasons = await upload_all(transport, [upload], lambda *_: None)
    assert reasons == {upload.sha256: "it changed while it was read; import it again"}


def test_a_session_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    found, _ = in_order(found_in(session(tmp_path, "a").parent))
    (tmp_path / "a.jsonl").unlink()
    prepared = prepare(found[0], "codex", tmp_path)
    assert prepared.report is not None
    assert prepared.report["problem"] == "it cannot be read: No such file or directory"


# What befalls every file


async def test_a_refusal_that_is_not_of_the_file_ends_it(tmp_path: Path) -> None:
    upload = upload_of(session(tmp_path, "a"), "a", tmp_path, companion=False)
    refusing = mock(lambda _: httpx2.Response(403, json={"detail": "It lacks artifacts:write."}))
    async with httpx2.AsyncClient(base_url=SERVICE[0], transport=refusing) as transport:
        with pytest.raises(RefusedError, match="It lacks artifacts:write"):
            await upload_all(transport, [upload], lambda *_: None)


async def test_a_service_that_is_busy_is_asked_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uploading, "TRIES", 2)
    upload = upload_of(session(tmp_path, "a"), "a", tmp_path, companion=False)
    answers = [httpx2.Response(503), httpx2.Response(429), httpx2.Response(503), httpx2.Response(201, json={})]
    async with httpx2.AsyncClient(base_url=SERVICE[0], transport=mock(lambda _: answers.pop(0))) as transport:
        with pytest.raises(UnreachableError):
            await upload_all(transport, [upload], lambda *_: None)
        assert await upload_all(transport, [upload], lambda *_: None) == {}


def test_a_service_that_is_not_there_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody listens")

    client = httpx2.AsyncClient(base_url="http://t.test", transport=mock(refuse))
    monkeypatch.setattr(importing, "transport_to", lambda *_: client)
    monkeypatch.setattr(uploading, "TRIES", 1)
    result = CliRunner().invoke(app, ["import", "codex", str(session(tmp_path, "a")), "--url", "http://t.test"])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "http://t.test took no upload of" in result.output and "--url" in result.output


def test_a_report_that_cannot_be_written_is_said_before_anything_is_done(tmp_path: Path) -> None:
    report = tmp_path / "nowhere" / "report.json"
    arguments = ["import", "codex", str(session(tmp_path, "a")), "--dry-run", "--report", str(report)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert '"kind"' not in result.output and "There is no folder" in result.output


# What makes an import


def some(count: int, beside: int = 0, begins: bytes | None = None) -> list[importing.Found]:
    return [
        importing.Found(
            Scanned(
                SessionFile(Path(f"{number}.jsonl"), f"{number}.jsonl", 1),
                CLAUDE,
                f"{number:09}".encode() if begins is None else begins,
            ),
            [Path(f"{number}/{each}.txt") for each in range(beside)],
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("sessions", "sizes"),
    [
        (some(0), [0]),
        (some(450), [200, 200, 50]),
        (some(50, beside=9), [20, 20, 10]),
        (some(2, beside=900), [1, 1]),
        (some(250, begins=b"then"), [250]),
        (some(250, begins=b""), [200, 50]),
    ],
    ids=["none", "many", "with-what-belongs-to-them", "with-much", "copies", "without-a-time"],
)
def test_an_import_holds_no_more_files_than_it_may(sessions: list[importing.Found], sizes: list[int]) -> None:
    assert [len(part) for part in parts(sessions)] == sizes


async def test_names_of_sessions_and_older_sessions_come_first(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importing, "FILES_AT_ONCE", 1)
    session(tmp_path, "fork", "2026-01-02T00:00:00Z")
    session(tmp_path, "parent", "2026-01-01T00:00:00Z")
    (tmp_path / "session_index.jsonl").write_bytes(b'{"id":"fork","thread_name":"n","updated_at":"2026"}\n')
    collected = Collected()
    await import_files(found_in(tmp_path), "codex", SERVICE, collected)
    assert [[file["path"] for file in each["files"]] for each in service.imports] == [
        ["session_index.jsonl", "parent.jsonl"],
        ["session_index.jsonl", "fork.jsonl"],
    ]
    assert list(collected.problems()) == ["parent.jsonl", "session_index.jsonl", "fork.jsonl"]
