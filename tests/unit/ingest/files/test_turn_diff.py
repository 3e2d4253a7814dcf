"""Diffs and restores of what turns did to files."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import call_hash
from schemas.events import FileChange, InputSubmitted, ToolCallFinished
from schemas.tools import Catalog, CatalogSource, ToolSpec
from services.chassis.artifacts.store import sha256_of
from services.ingest.files import recorded_changes as file_histories
from services.ingest.files.turn_diff import (
    FILES_MAX,
    MATCHED_LINES_MAX,
    NetChange,
    RecordedChange,
    diff_of,
    net_changes,
    restore,
)
from services.ingest.http.problems import TOO_LARGE, Problem
from tests.support.recorded import histories
from tests.unit.ingest.commands.accepting.test_accept import command
from tests.unit.ingest.threads import slug, with_call
from tests.unit.ingest.world import CATALOG, World

ONE, TWO, THREE = (sha256_of(text) for text in (b"one\n", b"two\n", b"three\n"))
MOST = 1_000_000


def change(path: str, before: str | None, after: str | None, seq: int = 1, mode: int | None = 0o644) -> RecordedChange:
    return RecordedChange(f"1.1.{seq}", seq, path, before, after, mode)


# Net changes


def test_changes_of_a_file_come_to_one() -> None:
    net = net_changes(
        [
            change("b", None, ONE, 1),
            change("a", ONE, TWO, 2, 0o755),
            change("b", ONE, TWO, 3),
            change("a", TWO, None, 4, 0o600),
        ]
    )
    assert net == [
        NetChange("a", ONE, None, 0o755, 4, ("1.1.2", "1.1.4")),
        NetChange("b", None, TWO, 0o644, 3, ("1.1.1", "1.1.3")),
    ]
    assert [one.status for one in net] == ["deleted", "created"]


def test_what_came_and_went_is_nothing() -> None:
    assert net_changes([change("a", None, ONE, 1), change("a", ONE, None, 2)]) == []
    assert net_changes([change("a", ONE, TWO, 1), change("a", TWO, ONE, 2)]) == []


def test_a_mode_that_is_not_known_at_first_is_the_later_one() -> None:
    [net] = net_changes([change("a", ONE, TWO, 1, None), change("a", TWO, THREE, 2, 0o700)])
    assert net.mode == 0o700


# Diffs


def applied_by_git(folder: Path, diff: str) -> None:
    ran = subprocess.run(["git", "apply", "-"], cwd=folder, input=diff.encode(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode() + diff


TEXTS = st.lists(st.sampled_from(["a", "b", "", "c\r", "\x0c", "d\u2028e"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)


@given(before=TEXTS, after=TEXTS)
def test_git_takes_the_diff(before: str, after: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "f").write_bytes(before.encode())
    if before == after:
        return
    net = NetChange("f", "x", "y", 0o644, 1, ())
    applied_by_git(folder, diff_of(net, before.encode(), after.encode(), MOST).text)
    assert (folder / "f").read_bytes() == after.encode()


@pytest.mark.parametrize("path", ["f", "sub/a b.txt", 'quo"te', "tab\there", "ü"])
def test_git_takes_created_and_deleted_files(tmp_path: Path, path: str) -> None:
    created = NetChange(path, None, ONE, 0o755, 1, ())
    applied_by_git(tmp_path, diff_of(created, None, b"one\n", MOST).text)
    assert (tmp_path / path).read_bytes() == b"one\n"
    assert (tmp_path / path).stat().st_mode & 0o111
    deleted = NetChange(path, ONE, None, 0o755, 1, ())
    applied_by_git(tmp_path, diff_of(deleted, b"one\n", None, MOST).text)
    assert not (tmp_path / path).exists()


def test_git_takes_an_empty_file(tmp_path: Path) -> None:
    applied_by_git(tmp_path, diff_of(NetChange("e", None, ONE, None, 1, ()), None, b"", MOST).text)
    assert (tmp_path / "e").read_bytes() == b""


@pytest.mark.parametrize("ends", [0, 10])
def test_git_takes_a_long_rewrite(tmp_path: Path, ends: int) -> None:
    same = [f"same {n}\n" for n in range(ends)]
    old = "".join([*same, *(f"old {n}\n" for n in range(MATCHED_LINES_MAX + 10)), *same]).encode()
    new = "".join([*same, *(f"new {n}\n" for n in range(MATCHED_LINES_MAX + 20)), *same]).encode()
    (tmp_path / "f").write_bytes(old)
    applied_by_git(tmp_path, diff_of(NetChange("f", "x", "y", 0o644, 1, ()), old, new, MOST).text)
    assert (tmp_path / "f").read_bytes() == new


def test_lines_that_come_again_and_again_are_not_matched_for_minutes(tmp_path: Path) -> None:
    """40 kB of such lines took a matcher 45 seconds."""
    lines = [f"l{n % 100}\n" for n in range(3_300)]
    others = [line if n % 3 else f"{line}u{n}\n" for n, line in enumerate(lines)]
    old, new = "".join(lines).encode(), "".join(others).encode()
    (tmp_path / "f").write_bytes(old)
    diff = diff_of(NetChange("f", "x", "y", 0o644, 1, ()), old, new, MOST).text
    # But for what both begin and end with.
    assert sum(line.startswith("-l") for line in diff.splitlines()) >= 3_290
    applied_by_git(tmp_path, diff)
    assert (tmp_path / "f").read_bytes() == new


def test_some_lines_that_come_again_are_matched() -> None:
    lines = [f"l{n % 10}\n" for n in range(150)]
    edited = ["first\n", *lines, "last\n"]
    diff = diff_of(NetChange("f", "x", "y", 0o644, 1, ()), "".join(lines).encode(), "".join(edited).encode(), MOST).text
    assert not [line for line in diff.splitlines()[3:] if line.startswith("-")]


@pytest.mark.parametrize(("mode", "shown"), [(0o4755, "100755"), (0o7, "100007"), (None, "100644")])
def test_permissions_are_shown_as_git_does(mode: int | None, shown: str) -> None:
    diff = diff_of(NetChange("f", None, ONE, mode, 1, ()), None, b"one\n", MOST).text
    assert f"new file mode {shown}\n" in diff


def test_a_small_edit_of_a_long_file_is_small() -> None:
    lines = [f"line {n}\n" for n in range(50_000)]
    edited = [*lines[:25_000], "new\n", *lines[25_001:]]
    diff = diff_of(NetChange("f", "x", "y", 0o644, 1, ()), "".join(lines).encode(), "".join(edited).encode(), MOST).text
    assert diff.splitlines()[3:] == [
        "@@ -24998,7 +24998,7 @@",
        *[f" line {n}" for n in (24997, 24998, 24999)],
        "-line 25000",
        "+new",
        *[f" line {n}" for n in (25001, 25002, 25003)],
    ]


@pytest.mark.parametrize("content", [b"\x00\x01", b"\xff\xfe"])
def test_bytes_that_are_no_text_are_named(content: bytes) -> None:
    diff = diff_of(NetChange("f", None, "y", 0o644, 1, ()), None, content, MOST)
    assert diff.binary
    assert diff.text.endswith("Binary files differ\n")


def test_a_long_diff_is_cut_and_says_so() -> None:
    diff = diff_of(NetChange("f", None, "y", 0o644, 1, ()), None, b"x\n" * 1_000, 100)
    assert diff.cut
    assert diff.text.endswith("… the diff goes on\n")
    assert len(diff.text) < 300


# Restoring, decided


def test_too_many_files_are_refused() -> None:
    net = [NetChange(f"f{n}", ONE, TWO, None, 1, ()) for n in range(FILES_MAX + 1)]
    refused = restore(command(), 1, net, {}, None)
    assert isinstance(refused, Problem) and refused.type is TOO_LARGE


# The routes


def world() -> World:
    made = World()
    tool = ToolSpec(name="restore_files", effect="idempotent", on_request=True)
    entry = CatalogSource(source="builtin", pool="builtin", tools=(tool,))
    made.catalog.catalog = Catalog().with_source("test", CATALOG).with_source("builtin", entry)
    return made


async def keep(world: World, *contents: bytes) -> None:
    for content in contents:
        await world.artifacts.put("dev", sha256_of(content), content, "text/plain")


async def finish(world: World, thread: str, *changes: tuple[str, str | None, str | None]) -> None:
    """The call of the open turn, with these changes; then the turn."""
    call = next(call for call in world.state(thread).calls.values() if not call.settled)
    await world.service_appends(thread, histories.approved(call, by="policy:never"), "policy:never")
    await world.service_appends(thread, histories.dispatched(world.state(thread).calls[call.call]))
    claim = histories.claimed(world.state(thread).calls[call.call])
    await world.service_appends(thread, claim, "service:tool-executor")
    done = histories.finished(world.state(thread).calls[call.call])
    made = tuple(FileChange(path=path, before=before, after=after, mode=0o644) for path, before, after in changes)
    event = ToolCallFinished.model_validate(done.model_dump() | {"changes": made})
    await world.service_appends(thread, event, "service:tool-executor")
    await world.service_appends(thread, histories.turn_ended(world.state(thread), "failed"))


async def next_turn(world: World, thread: str, *changes: tuple[str, str | None, str | None]) -> None:
    await world.post(f"/v1/threads/{thread}/inputs", {"text": "more"})
    await world.service_appends(thread, histories.turn_started(world.state(thread)))
    await world.service_appends(thread, histories.step_started(world.state(thread)))
    await world.service_appends(
        thread, histories.step_finished(world.state(thread), calls=[histories.proposed(0, "shell")])
    )
    await finish(world, thread, *changes)


async def with_turn(world: World, *changes: tuple[str, str | None, str | None]) -> str:
    thread = await with_call(world)
    await finish(world, thread, *changes)
    return thread


async def test_a_turns_changes_are_shown() -> None:
    w = world()
    await keep(w, b"one\n", b"two\n", b"\x00")
    binary = sha256_of(b"\x00")
    thread = await with_turn(w, ("a.txt", ONE, TWO), ("new.bin", None, binary), ("gone.txt", ONE, None))
    answer = await w.client.get(f"/v1/threads/{thread}/turns/1/diff")
    assert answer.status_code == 200
    body = answer.json()
    assert [(one["path"], one["status"], one["binary"]) for one in body["files"]] == [
        ("a.txt", "modified", False),
        ("gone.txt", "deleted", False),
        ("new.bin", "created", True),
    ]
    assert body["files"][0]["diff"] == (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    )
    plain = await w.client.get(f"/v1/threads/{thread}/turns/1/diff", headers={"accept": "text/x-diff"})
    assert plain.headers["content-type"].startswith("text/x-diff")
    assert plain.headers["x-content-type-options"] == "nosniff"
    assert plain.text == "".join(one["diff"] for one in body["files"])


async def test_what_the_store_lacks_or_is_too_large_is_named() -> None:
    w = World(diff_file_bytes_max=1_024, diff_bytes_max=2_000)
    large = b"x" * 1_025
    lines = b"line\n" * 200
    await keep(w, large, b"one\n", lines)
    names = [("a", None, sha256_of(large)), ("b", TWO, ONE)]
    many = [(f"c{n}", None, sha256_of(lines)) for n in range(4)]
    thread = await with_turn(w, *names, *many)
    files = (await w.client.get(f"/v1/threads/{thread}/turns/1/diff")).json()["files"]
    assert (files[0]["cut"], files[0]["missing"]) == (True, False)
    assert "larger than 1024 bytes" in files[0]["diff"]
    assert (files[1]["cut"], files[1]["missing"]) == (False, True)
    assert TWO in files[1]["diff"]
    assert [one["cut"] for one in files[2:]] == [False, True, True, True]


async def test_a_diff_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    await keep(w, b"one\n", b"two\n")
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    monkeypatch.setattr(file_histories, "SECONDS_MAX", 0.0)
    [file] = (await w.client.get(f"/v1/threads/{thread}/turns/1/diff")).json()["files"]
    assert (file["cut"], "takes too long" in file["diff"]) == (True, True)


async def test_a_diff_of_a_store_that_is_away() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    w.artifacts.away = True
    assert (await w.client.get(f"/v1/threads/{thread}/turns/1/diff")).status_code == 503


@pytest.mark.parametrize("what", ["diff", "restore"])
async def test_a_turn_that_is_not_there(what: str) -> None:
    w = world()
    thread = await with_turn(w)
    method = "GET" if what == "diff" else "POST"
    for path in (f"/v1/threads/{thread}/turns/7/{what}", f"/v1/threads/{thread}/turns/x/{what}"):
        assert slug((await w.client.request(method, path)).json()) == "not-found"
    foreign = await w.client.request(
        method, f"/v1/threads/{thread}/turns/1/{what}", headers={"x-threadlog-tenant": "other"}
    )
    assert slug(foreign.json()) == "thread-not-found"


async def restored(w: World, thread: str, turn: int = 1, key: str | None = None) -> Any:
    return await w.post(f"/v1/threads/{thread}/turns/{turn}/restore", key=key)


async def test_a_restore_is_a_call_that_is_asked_for() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO), ("new.txt", None, THREE))
    answer = await restored(w, thread)
    assert (answer.status_code, answer.json()["files"]) == (200, 2)
    event = w.folded(thread)[-1][0].data
    assert isinstance(event, InputSubmitted) and event.call is not None
    assert event.mode == "reject"
    assert event.call.tool == "restore_files"
    assert event.call.by == "user:dev"
    assert event.call.args == {
        "files": [
            {"path": "a.txt", "expected": TWO, "wanted": ONE, "mode": 0o644},
            {"path": "new.txt", "expected": THREE, "wanted": None},
        ]
    }
    assert event.call.call_hash == call_hash("restore_files", event.call.args)
    assert w.state(thread).queue[-1].call == event.call


async def test_a_restore_over_later_changes_is_refused_with_a_list() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO), ("b.txt", ONE, TWO), ("c.txt", ONE, TWO))
    await next_turn(w, thread, ("a.txt", TWO, THREE), ("c.txt", TWO, None), ("d.txt", None, ONE))
    before = len(w.folded(thread))
    answer = await restored(w, thread)
    assert (answer.status_code, slug(answer.json())) == (409, "files-changed-since")
    assert [(one["path"], one["call"], one["expected"], one["found"]) for one in answer.json()["files"]] == [
        ("a.txt", "2.1.0", TWO, THREE),
        ("c.txt", "2.1.0", TWO, None),
    ]
    assert len(w.folded(thread)) == before
    assert (await restored(w, thread, 2)).status_code == 200


async def test_a_later_change_that_left_the_file_as_it_was_is_none() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    await next_turn(w, thread, ("a.txt", TWO, ONE))
    await next_turn(w, thread, ("a.txt", ONE, TWO))
    assert (await restored(w, thread)).status_code == 200


async def test_a_restore_that_is_sent_again_is_answered_alike() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    first = await restored(w, thread, key="k")
    await w.service_appends(thread, histories.turn_started(w.state(thread)))
    await w.service_appends(thread, histories.step_started(w.state(thread)))
    asked = w.state(thread).turn
    assert asked is not None and asked.requested is not None
    call = histories.proposed(0, "restore_files", asked.requested.args)
    await w.service_appends(thread, histories.step_finished(w.state(thread), calls=[call]))
    await finish(w, thread, ("a.txt", TWO, ONE))
    again = await restored(w, thread, key="k")
    assert (again.status_code, again.json()) == (200, first.json())
    assert slug((await restored(w, thread, key="l")).json()) == "files-changed-since"


async def test_a_turn_without_changes_has_nothing_to_put_back() -> None:
    w = world()
    thread = await with_turn(w)
    assert slug((await restored(w, thread)).json()) == "nothing-to-restore"
    assert (await w.client.get(f"/v1/threads/{thread}/turns/1/diff")).json()["files"] == []


async def test_a_restore_waits_for_no_open_turn() -> None:
    w = world()
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    await w.post(f"/v1/threads/{thread}/inputs", {"text": "more"})
    answer = await restored(w, thread)
    assert (answer.status_code, slug(answer.json())) == (409, "not-applied")


async def test_a_restore_needs_an_executor_with_the_tool() -> None:
    w = World()
    thread = await with_turn(w, ("a.txt", ONE, TWO))
    assert slug((await restored(w, thread)).json()) == "tool-not-in-catalog"
