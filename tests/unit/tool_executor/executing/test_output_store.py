"""Whole outputs: kept in the artifact store before the end of a call is said, and read back by the model."""

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from prometheus_client import CollectorRegistry

from services.chassis.settings import MIB
from services.tool_executor.attachments import Attachment, Spool, whole_text
from services.tool_executor.builtin.echo import EchoTool
from services.tool_executor.builtin.files import ReadFileTool
from services.tool_executor.builtin.read_artifact import ReadArtifactTool
from services.tool_executor.builtin.shell import ShellTool
from services.tool_executor.executing.output_store import OutputStore, OutputStoreLimits
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.mcp import _result
from services.tool_executor.output import INLINE_BYTES_MAX
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest, ToolRunner
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import Sandbox
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.recorded.tool_requests import request, run, text_of

TENANT = "acme"


class Ends:
    """A tool that ends so."""

    def __init__(self, end: ToolEnd) -> None:
        self._end = end

    async def run(self, _request: ToolRequest, _emit: Emit, _cancelled: asyncio.Event, /) -> ToolEnd:
        return self._end


def keeping(tool: ToolRunner, artifacts: Any, **limits: float) -> OutputStore:
    return OutputStore(tool, artifacts, ExecutorMetrics.register(CollectorRegistry()), OutputStoreLimits(**limits))


def stored(artifacts: MemoryArtifacts, end: ToolEnd) -> list[bytes]:
    return [artifacts.objects[TENANT, str(named["sha256"])].data for named in end.artifacts]


async def test_a_small_result_needs_no_store(artifacts: MemoryArtifacts) -> None:
    artifacts.away = True
    end, _ = await run(keeping(EchoTool(), artifacts), request("echo", text="x" * 32_768))
    assert end.artifacts == [] and text_of(end) == "x" * 32_768


async def test_a_long_text_is_kept_whole_and_said_where(artifacts: MemoryArtifacts) -> None:
    end, _ = await run(keeping(EchoTool(), artifacts), request("echo", text="abc", bytes=100_000))
    [whole] = stored(artifacts, end)
    assert whole == (b"abc" * 40_000)[:100_000]
    assert end.artifacts[0] == {
        "sha256": end.artifacts[0]["sha256"],
        "size": 100_000,
        "media_type": "text/plain; charset=utf-8",
        "name": "output.txt",
    }
    text = text_of(end)
    assert text.startswith("abcabc") and "bytes cut" in text
    assert re.search(r'read_artifact: {"sha256": "[0-9a-f]{64}", "offset": 0}', text)
    assert len(json.dumps(end.result).encode()) < INLINE_BYTES_MAX + 1_000
    assert end.attachments == ()


async def test_a_commands_whole_output_is_kept(sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts) -> None:
    command = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end; exit 3"
    end, _ = await run(keeping(ShellTool(sandbox, warden, 5.0, MIB), artifacts), request("shell", command=command))
    assert end.outcome == "failed"
    assert stored(artifacts, end) == [b"x" * 300_000 + b"\nend\n"]
    assert text_of(end).startswith("xxx") and "\nend\n" in text_of(end)
    result: Any = end.result
    assert result["exit_code"] == 3


async def test_bytes_that_are_no_text_are_kept_as_they_are(
    sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts
) -> None:
    command = "for i in $(seq 2000); do printf '\\000\\377\\n%s' xxxxxxxxxxxxxxxxxxxx; done"
    end, _ = await run(keeping(ShellTool(sandbox, warden, 5.0, MIB), artifacts), request("shell", command=command))
    assert stored(artifacts, end) == [(b"\x00\xff\n" + b"x" * 20) * 2000]


async def test_an_output_without_end_is_kept_up_to_its_limit(
    sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts
) -> None:
    tool = ShellTool(sandbox, warden, 5.0, kept_bytes_max=50_000)
    end, _ = await run(keeping(tool, artifacts), request("shell", command="head -c 200000 /dev/zero | tr '\\0' x"))
    assert stored(artifacts, end) == [b"x" * 50_000]
    assert "150000 bytes after them were not kept" in text_of(end)


async def test_a_disk_without_room_ends_no_command(
    sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb", buffering=0))  # noqa: SIM115
    command = "head -c 300000 /dev/zero | tr '\\0' x && echo end"
    end, _ = await run(keeping(ShellTool(sandbox, warden, 5.0, MIB), artifacts), request("shell", command=command))
    assert (end.outcome, end.artifacts) == ("succeeded", [])
    assert "xend\n" in text_of(end) and "300004 bytes could not be kept" in text_of(end)


async def test_a_folder_for_temporary_files_that_is_gone_ends_no_command(
    sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    command = "head -c 300000 /dev/zero | tr '\\0' x && echo end"
    end, _ = await run(keeping(ShellTool(sandbox, warden, 5.0, MIB), artifacts), request("shell", command=command))
    assert (end.outcome, end.artifacts) == ("succeeded", [])
    assert "xend\n" in text_of(end) and "300004 bytes could not be kept" in text_of(end)


async def test_a_command_that_timed_out_keeps_what_it_said(
    sandbox: Sandbox, warden: Warden, artifacts: MemoryArtifacts
) -> None:
    tool = ShellTool(sandbox, warden, 0.1, MIB)
    asked = request("shell", command="head -c 100000 /dev/zero | tr '\\0' x; sleep 60", timeout_seconds=0.7)
    end, _ = await run(keeping(tool, artifacts), asked)
    assert end.outcome == "timed_out"
    assert stored(artifacts, end) == [b"x" * 100_000]


async def test_a_file_of_which_a_result_shows_parts_is_kept(
    sandbox: Sandbox, workspace: Path, artifacts: MemoryArtifacts
) -> None:
    (workspace / "long.txt").write_text("line\n" * 10_000)
    end, _ = await run(keeping(ReadFileTool(sandbox), artifacts), request("read_file", path="long.txt", limit=20_000))
    assert stored(artifacts, end) == [b"line\n" * 10_000]


@pytest.mark.parametrize("how", ["away", "slow", "refuses"])
async def test_a_store_that_does_not_take_it_costs_no_result(artifacts: MemoryArtifacts, how: str) -> None:
    class Slow(MemoryArtifacts):
        async def put(self, *_args: Any) -> Any:
            await asyncio.sleep(60)

    store = Slow() if how == "slow" else artifacts
    store.away = how == "away"
    store.bytes_max = 10 if how == "refuses" else store.bytes_max
    end, _ = await run(keeping(EchoTool(), store, seconds=0.05), request("echo", text="abc", bytes=100_000))
    assert end.outcome == "succeeded"
    assert end.artifacts == []
    assert text_of(end).startswith("abcabc")
    assert "100000 bytes could not be kept" in text_of(end)


@pytest.mark.parametrize("outcome", ["lost", "cancelled", "not_started"])
async def test_an_end_without_a_result_keeps_nothing(artifacts: MemoryArtifacts, outcome: Any) -> None:
    spool = Spool(1_000)
    spool.add(b"x")
    end = ToolEnd(outcome, None, attachments=(Attachment(spool, "text/plain", "output.txt"),))
    ended, _ = await run(keeping(Ends(end), artifacts), request("x"))
    assert (ended.outcome, ended.attachments, artifacts.objects) == (outcome, (), {})


async def test_an_image_is_kept_and_named_in_its_place(artifacts: MemoryArtifacts) -> None:
    answer = mcp_types.CallToolResult(
        content=[
            mcp_types.TextContent(type="text", text="see"),
            mcp_types.ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png"),
            mcp_types.ImageContent(type="image", data="*", mime_type="image/png"),
            mcp_types.EmbeddedResource(
                type="resource",
                resource=mcp_types.BlobResourceContents(uri="file:///a.pdf", blob="JVBERg==", mime_type=None),
            ),
        ]
    )
    result, attachments = _result(answer, INLINE_BYTES_MAX)
    end, _ = await run(keeping(Ends(ToolEnd("succeeded", result, attachments=attachments)), artifacts), request("x"))
    assert stored(artifacts, end) == [b"\x89PNG\r\n\x1a\n", b"%PDF"]
    assert [named["media_type"] for named in end.artifacts] == ["image/png", "application/octet-stream"]
    lines = text_of(end).splitlines()
    assert lines[0] == "see"
    assert lines[1] == f"[image-2: image/png, 8 bytes, artifact {end.artifacts[0]['sha256']}]"
    assert lines[2] == "[image-3: image/png, 1 characters that are no base64, not kept]"
    assert len(lines) == 4


async def test_of_very_many_images_the_first_are_kept(artifacts: MemoryArtifacts) -> None:
    """The event of the end names each, and has a limit: it would be said of none."""
    image = mcp_types.ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")
    result, attachments = _result(mcp_types.CallToolResult(content=[image] * 3_000), INLINE_BYTES_MAX)
    end, _ = await run(keeping(Ends(ToolEnd("succeeded", result, attachments=attachments)), artifacts), request("x"))
    assert [named["name"] for named in end.artifacts if named["media_type"] == "image/png"] == [
        f"image-{number}" for number in range(1, 101)
    ]
    assert "[image-3000: image/png, not kept: an answer may have 100 of them]" in text_of(end)


async def test_a_long_mcp_answer_is_kept_with_its_structure(artifacts: MemoryArtifacts) -> None:
    answer = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text="x" * 40_000)], structured_content={"rows": ["y" * 40_000]}
    )
    result, attachments = _result(answer, INLINE_BYTES_MAX)
    end, _ = await run(keeping(Ends(ToolEnd("succeeded", result, attachments=attachments)), artifacts), request("x"))
    assert stored(artifacts, end) == [b"x" * 40_000, json.dumps({"rows": ["y" * 40_000]}).encode()]


def test_a_short_text_has_no_attachment() -> None:
    assert whole_text("é" * 16_384) == ()
    assert len(whole_text("é" * 16_385)) == 1


# Reading it


async def read(sandbox: Sandbox, artifacts: MemoryArtifacts, **args: Any) -> ToolEnd:
    return (await run(ReadArtifactTool(sandbox, artifacts), request("read_artifact", **args)))[0]


async def test_any_part_is_read(sandbox: Sandbox, artifacts: MemoryArtifacts) -> None:
    end, _ = await run(keeping(EchoTool(), artifacts), request("echo", text="0123456789", bytes=100_000))
    sha256 = end.artifacts[0]["sha256"]
    part = await read(sandbox, artifacts, sha256=sha256, offset=50_003, bytes=4)
    result: Any = part.result
    assert result["structured"]["size"] == 100_000 and result["structured"]["end"] == 50_007
    assert result["content"][0]["text"] == "3456"
    most = await read(sandbox, artifacts, sha256=sha256, offset=0, bytes=30_720)
    assert most.attachments == () and text_of(most) == ("0123456789" * 3_072)


async def test_what_cannot_be_read_is_told(sandbox: Sandbox, artifacts: MemoryArtifacts) -> None:
    end, _ = await run(keeping(EchoTool(), artifacts), request("echo", text="x", bytes=100_000))
    sha256 = end.artifacts[0]["sha256"]
    assert "100000 bytes; there is no byte 100000" in text_of(
        await read(sandbox, artifacts, sha256=sha256, offset=100_000)
    )
    assert "no artifact" in text_of(await read(sandbox, artifacts, sha256="0" * 64))
    assert "do not fit" in text_of(await read(sandbox, artifacts, sha256="../etc"))
    assert "do not fit" in text_of(await read(sandbox, artifacts, sha256=sha256, bytes=10**9))
    artifacts.away = True
    assert "does not answer" in text_of(await read(sandbox, artifacts, sha256=sha256))


async def test_an_artifact_of_another_tenant_is_not_read(sandbox: Sandbox, artifacts: MemoryArtifacts) -> None:
    whole = whole_text("x" * 40_000)[0]
    await artifacts.put("other", whole.sha256, b"x" * 40_000, "text/plain")
    assert "no artifact" in text_of(await read(sandbox, artifacts, sha256=whole.sha256))
