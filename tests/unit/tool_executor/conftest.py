import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.tool_executor.workspace.file_history import FileHistory
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.recorded.tool_requests import WORKSPACE_OF

CHANGE_BYTES_MAX = 256 * 1_048_576


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "workspaces"


@pytest.fixture
def workspace(root: Path) -> Path:
    path = root / WORKSPACE_OF[0] / WORKSPACE_OF[1]
    path.mkdir(parents=True)
    return path


@pytest.fixture
def sandbox(root: Path) -> Sandbox:
    return Sandbox(SandboxPolicy(root=root), os.environ)


@pytest.fixture
def artifacts() -> MemoryArtifacts:
    return MemoryArtifacts()


@pytest.fixture
def history(artifacts: MemoryArtifacts) -> FileHistory:
    return FileHistory(artifacts, CHANGE_BYTES_MAX)


@pytest.fixture
async def warden() -> AsyncIterator[Warden]:
    warden = Warden()
    yield warden
    await warden.close()
