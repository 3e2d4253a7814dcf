"""Builds what the operator's file asks for: sandbox, built-in tools, MCP servers, catalog entries, reconcile hooks.

A tool is put into the toolbox before it is published in the catalog. In the other order, a call could arrive for a
tool that this executor has offered and does not have yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from schemas.tools import CatalogSource, ToolSpec
from services.chassis.artifacts.store import ArtifactStore
from services.chassis.catalog.publisher import Publisher
from services.chassis.process.lifecycle import Spawn
from services.chassis.threads.skill_tar import SkillLimits
from services.tool_executor.builtin.apply_patch import ApplyPatchTool
from services.tool_executor.builtin.echo import EchoTool
from services.tool_executor.builtin.files import ReadFileTool, WriteFileTool
from services.tool_executor.builtin.load_skill import LoadSkillTool
from services.tool_executor.builtin.read_artifact import ReadArtifactTool
from services.tool_executor.builtin.restore_files import RestoreFilesTool
from services.tool_executor.builtin.shell import ShellTool
from services.tool_executor.offering.catalog import McpTools, builtin_entry, client_entry, mcp_source
from services.tool_executor.offering.hooks import CommandHook, ReconcileHook, ToolHook
from services.tool_executor.offering.tools_file import ToolsFile
from services.tool_executor.settings import ExecutorSettings
from services.tool_executor.tools import Toolbox, ToolRunner
from services.tool_executor.workspace.file_history import FileHistory
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy, find_bubblewrap
from services.tool_executor.workspace.skills import SkillFolders

if TYPE_CHECKING:
    from services.tool_executor.offering.mcp import McpServer

log = structlog.get_logger()


def sandbox_policy(settings: ExecutorSettings, file: ToolsFile) -> SandboxPolicy:
    """Return the policy of all threads. A workspace root in the file wins over that of the settings."""
    return SandboxPolicy(
        root=(file.workspace_root or settings.executor_workspace_root).resolve(),
        enforcement=file.sandbox.enforcement,
        profile_default=file.sandbox.profile_default,
        profile_widest=file.sandbox.profile_widest,
        network=file.sandbox.network,
        variables=file.variables,
        variables_on_request=file.variables_on_request,
        bubblewrap=find_bubblewrap(),
    )


@dataclass(slots=True)
class Assembly:
    """The tools of one executor process, and what they share."""

    file: ToolsFile
    sandbox: Sandbox
    warden: Warden
    toolbox: Toolbox
    publisher: Publisher
    spawn: Spawn
    grace_seconds: float
    history: FileHistory
    kept_bytes_max: int

    def hooks(self) -> dict[str, ReconcileHook]:
        """Return the reconcile hooks, by the name of the tool whose calls they are asked about."""
        found: dict[str, ReconcileHook] = {}
        for name, policy in self.file.tools.items():
            wanted = policy.reconcile
            if wanted is None:
                continue
            if wanted.tool is not None:
                found[name] = ToolHook(wanted.tool, self.toolbox)
            else:
                argv = wanted.command or ()
                found[name] = CommandHook(argv, wanted.env, self.sandbox, self.warden, self.grace_seconds)
        return found

    def start(self) -> None:
        """Offer the built-in tools now, and those of an MCP server whenever it connects or its list of tools changes.

        A server that cannot be reached does not keep the executor from starting: its tools are missing until it is
        there, and the toolbox is told to expect them, so that calls wait for it instead of failing.
        """
        specs: list[ToolSpec] = []
        runners: dict[str, ToolRunner] = {}
        for name in self.file.builtin:
            spec, runner = self._builtin(name)
            specs.append(spec)
            runners[name] = runner
        entry = builtin_entry(self.file.pool, specs, self.file.tools)
        self._offer(entry, runners)
        if self.file.client_tools is not None:
            self._publish(client_entry(self.file.client_tools))
        if self.file.mcp:
            self._start_mcp_servers()

    def _start_mcp_servers(self) -> None:
        """Import the SDK here: it takes two fifths of the start of an executor, and most have no MCP server."""
        from services.tool_executor.offering.mcp import McpServer

        for server_name, config in self.file.mcp.items():
            self.toolbox.expect(mcp_source(server_name))
            server = McpServer(
                server_name, config, self.file.pool, self.file.tools, self.sandbox, self.warden, self._on_tools
            )
            self.spawn(server.serve(), f"mcp {server_name}")

    def _builtin(self, name: str) -> tuple[ToolSpec, ToolRunner]:
        match name:
            case "shell":
                shell = ShellTool(self.sandbox, self.warden, self.grace_seconds, self.kept_bytes_max)
                return shell.spec, shell
            case "read_file":
                reading = ReadFileTool(self.sandbox)
                return reading.spec, reading
            case "write_file":
                writing = WriteFileTool(self.sandbox, self.history)
                return writing.spec, writing
            case "apply_patch":
                patching = ApplyPatchTool(self.sandbox, self.history)
                return patching.spec, patching
            case "restore_files":
                restoring = RestoreFilesTool(self.sandbox, self.history)
                return restoring.spec, restoring
            case "load_skill":
                loading = LoadSkillTool(self.sandbox)
                return loading.spec, loading
            case "read_artifact":
                artifacts = ReadArtifactTool(self.sandbox, self.history.store)
                return artifacts.spec, artifacts
            case _:
                echo = EchoTool()
                return echo.spec, echo

    def _on_tools(self, server: "McpServer", tools: McpTools) -> None:
        for name, reason in tools.left_out.items():
            log.warning("tool_left_out", server=server.name, tool=name, reason=reason)
        self._offer(tools.entry, dict.fromkeys(tools.server_names, server))

    def _offer(self, entry: CatalogSource, runners: Mapping[str, ToolRunner]) -> None:
        self.toolbox.put(runners, entry.source)
        self._publish(entry)

    def _publish(self, entry: CatalogSource) -> None:
        """Publish in a task of its own: the log may be away, and tools that are known already can run meanwhile."""
        self.spawn(self.publisher.publish(entry), f"publish {entry.source}")


def assembled(
    settings: ExecutorSettings,
    file: ToolsFile,
    environ: Mapping[str, str],
    publisher: Publisher,
    spawn: Spawn,
    store: ArtifactStore,
) -> Assembly:
    """Build the assembly and create the workspace root, for this user alone. Raises OSError. Starts nothing yet."""
    policy = sandbox_policy(settings, file)
    policy.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    grace_seconds = settings.executor_grace_seconds
    history = FileHistory(store, settings.executor_change_bytes_max)
    # The store refuses larger artifacts, so keeping more of an output would lose all of it.
    kept_bytes_max = min(settings.executor_output_bytes_max, settings.artifact_bytes_max)
    sandbox = Sandbox(policy, environ, SkillFolders(store, SkillLimits()))
    return Assembly(file, sandbox, Warden(), Toolbox(), publisher, spawn, grace_seconds, history, kept_bytes_max)
