"""The operator's file: which tools this executor offers, and what it lets them do.

    pool: default
    workspace_root: /var/lib/threadlog/workspaces
    sandbox: {enforcement: where-present, profile_widest: workspace-write}
    variables: [PATH, LANG]
    builtin: [shell, read_file, write_file, apply_patch, read_artifact, restore_files, load_skill]
    mcp:
      git:
        command: mcp-server-git
        bound_arguments: {repo_path: "{cwd}"}
      tracker:
        url: https://mcp.example.com/mcp
        headers: {Authorization: "Bearer ${TRACKER_TOKEN}"}
    tools:
      git_commit: {effect: unsafe, max_attempts: 1}
      create_issue: {effect: idempotent, timeout_seconds: 20}
      create_charge: {effect: reconcilable, reconcile: {tool: lookup_charge}}
      send_parcel: {effect: reconcilable, reconcile: {command: [check-parcel, --json]}}
      lookup_charge: {enabled: false}
    client_tools:
      ask_customer:
        description: Ask the customer a question in the shop's own chat.
        input_schema: {type: object, properties: {question: {type: string}}, required: [question]}
        timeout_seconds: 3600

docs/tools.md explains it. `${NAME}` in `env`, `headers` and `url` is replaced from the executor's environment, so that
credentials stay out of the file. `bound_arguments` are filled in by the executor and hidden from the model: a server
that many threads share is so directed to the thread's own place, by `{workspace}`, `{cwd}`, `{tenant}`, `{thread}`.

The file is read once, when the executor starts. A mistake in it ends the start with one message that names the field:
a tool under a wrong policy is worse than no executor.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from schemas.config import PermissionProfile
from schemas.events import EffectClass
from schemas.ids import NAME_PATTERN
from schemas.tools import TOOL_NAME_PATTERN
from services.chassis.catalog.tool_arguments import schema_problem
from services.tool_executor.workspace.sandbox import VARIABLES_DEFAULT, Enforcement

BuiltinName = Literal[
    "shell", "read_file", "write_file", "apply_patch", "read_artifact", "restore_files", "load_skill", "echo"
]
BUILTIN_DEFAULT: tuple[BuiltinName, ...] = (
    "shell",
    "read_file",
    "write_file",
    "apply_patch",
    "read_artifact",
    "restore_files",
    "load_skill",
)
FILE_BYTES_MAX: Final = 1_048_576
"""A larger file is hardly a tools file; somebody has named a wrong path."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ToolsFileError(Exception):
    """The tools file cannot be used. The text names the file, the field, what is wrong and what to do."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


ToolName = Annotated[str, StringConstraints(pattern=TOOL_NAME_PATTERN)]


class ReconcileSection(_Section):
    """How the downstream is asked: with a `tool` of this executor, or with a `command`."""

    tool: ToolName | None = None
    command: tuple[Annotated[str, StringConstraints(min_length=1)], ...] | None = Field(default=None, min_length=1)
    env: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_way(self) -> "ReconcileSection":
        if (self.tool is None) == (self.command is None):
            raise ValueError("give either `tool` or `command`, and not both")
        if self.tool is not None and self.env:
            raise ValueError("`env` works only with `command`; remove it")
        return self

    def __str__(self) -> str:
        """Return the hook as people see it in the catalog, without the arguments of a command."""
        return f"tool:{self.tool}" if self.command is None else f"command:{Path(self.command[0]).name}"


class ToolPolicy(_Section):
    """The operator's policy for one tool. A field that is not given stays as the tool or its server defines it."""

    enabled: bool = True
    effect: EffectClass | None = None
    parallel: bool | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=86_400)
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    description: str | None = None
    reconcile: ReconcileSection | None = None

    @model_validator(mode="after")
    def _can_be_asked(self) -> "ToolPolicy":
        if self.effect == "reconcilable" and self.reconcile is None:
            raise ValueError("`effect: reconcilable` also needs `reconcile`, which says how the downstream is asked")
        if self.reconcile is not None and self.effect != "reconcilable":
            raise ValueError("`reconcile` works only with `effect: reconcilable`; set that effect, or remove it")
        return self


class ClientTool(_Section):
    """A tool that the customer's backend runs."""

    description: str = ""
    input_schema: dict[str, JsonValue] = {"type": "object", "properties": {}}
    effect: Literal["pure", "idempotent", "unsafe"] = "unsafe"
    parallel: bool = False
    timeout_seconds: float = Field(default=120, gt=0, le=2_592_000)
    """Seconds from when the backend has the call. Before that it may be away for
    THREADLOG_RUNTIME_CLIENT_TOOL_SECONDS.
    """
    max_attempts: int = Field(default=3, ge=1, le=100)

    @field_validator("input_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
        problem = schema_problem(schema)
        if problem is not None:
            raise ValueError(f"this is not a valid JSON Schema: {problem}")
        return schema


class McpServerConfig(_Section):
    """Either `command` (a process that speaks over its standard input and output) or `url` (streamable HTTP)."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: Path | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,32}$")
    """Text before the names of its tools, for two servers that use the same names."""
    bound_arguments: dict[str, str] = {}
    connect_seconds: float = Field(default=30, gt=0)
    call_wait_seconds: float = Field(default=5, ge=0)
    """Seconds that a call waits for a server that is not connected. Then it is handed back as not started."""
    relist_seconds: float = Field(default=300, gt=0)
    """Seconds after which its list of tools is read again, even if the server did not say that it changed."""

    @model_validator(mode="after")
    def _one_transport(self) -> "McpServerConfig":
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` or `url`, and not both")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("`args`, `env` and `cwd` work only with `command`; remove them")
        if self.command is not None and self.headers:
            raise ValueError("`headers` work only with `url`; remove them")
        return self


class SandboxSection(_Section):
    """What commands may do on this executor; `workspace.sandbox` explains the values."""

    enforcement: Enforcement = "where-present"
    profile_default: PermissionProfile = "workspace-write"
    profile_widest: PermissionProfile = "full"
    network: bool = True


ServerName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class ToolsFile(_Section):
    """The whole file. Unknown fields are refused, so that a misspelt policy does not go unnoticed."""

    pool: Annotated[str, StringConstraints(pattern=NAME_PATTERN)] = "default"
    workspace_root: Path | None = None
    """Folder of the workspaces. None: THREADLOG_EXECUTOR_WORKSPACE_ROOT."""
    sandbox: SandboxSection = SandboxSection()
    variables: tuple[str, ...] = VARIABLES_DEFAULT
    variables_on_request: tuple[str, ...] = ()
    builtin: tuple[BuiltinName, ...] = BUILTIN_DEFAULT
    mcp: dict[ServerName, McpServerConfig] = {}
    tools: dict[str, ToolPolicy] = {}
    client_tools: dict[ToolName, ClientTool] | None = None
    """Tools that backends run. None: this executor leaves those in the catalog alone; empty: it removes them."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ToolsFile":
        for name, policy in self.tools.items():
            asked = None if policy.reconcile is None else policy.reconcile.tool
            if asked == name:
                raise ValueError(
                    f"tools.{name}.reconcile.tool: a tool cannot be its own hook, because asking would run it again"
                )
            if asked is not None and asked not in self.builtin and not self.mcp:
                raise ValueError(
                    f"tools.{name}.reconcile.tool: this executor has no tool {asked}; add it to `builtin` or `mcp`"
                )
        for name in self.client_tools or {}:
            if name in self.builtin:
                raise ValueError(f"client_tools.{name}: a built-in tool has this name; choose another")
            if name in self.tools:
                raise ValueError(f"client_tools.{name}: it is also in `tools`; keep it here, and remove it there")
        return self


def read_tools_file(path: Path, environ: Mapping[str, str]) -> ToolsFile:
    """Read and check the file. Raises ToolsFileError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ToolsFileError(f"{path}: the file cannot be read: {error.strerror}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise ToolsFileError(f"{path}: the file is larger than {FILE_BYTES_MAX} bytes")
    return parse_tools_file(raw.decode(errors="replace"), str(path), environ)


def parse_tools_file(text: str, named: str, environ: Mapping[str, str]) -> ToolsFile:
    """Check the text of a file that is called `named` in messages. Raises ToolsFileError."""
    try:
        data: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ToolsFileError(f"{named}: the file is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        file = ToolsFile.model_validate({} if data is None else data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False)
        )
        raise ToolsFileError(f"{named}: {problems}") from error
    return file.model_copy(
        update={
            "mcp": {name: _resolved_server(named, name, server, environ) for name, server in file.mcp.items()},
            "tools": {name: _resolved_policy(named, name, policy, environ) for name, policy in file.tools.items()},
        }
    )


def _resolved_server(named: str, name: str, server: McpServerConfig, environ: Mapping[str, str]) -> McpServerConfig:
    place = f"{named}: mcp.{name}"
    return server.model_copy(
        update={
            "env": {key: _filled(f"{place}.env.{key}", value, environ) for key, value in server.env.items()},
            "headers": {
                key: _filled(f"{place}.headers.{key}", value, environ) for key, value in server.headers.items()
            },
            "url": None if server.url is None else _filled(f"{place}.url", server.url, environ),
        }
    )


def _resolved_policy(named: str, name: str, policy: ToolPolicy, environ: Mapping[str, str]) -> ToolPolicy:
    if policy.reconcile is None:
        return policy
    place = f"{named}: tools.{name}.reconcile.env"
    env = {key: _filled(f"{place}.{key}", value, environ) for key, value in policy.reconcile.env.items()}
    return policy.model_copy(update={"reconcile": policy.reconcile.model_copy(update={"env": env})})


def _filled(place: str, text: str, environ: Mapping[str, str]) -> str:
    """Replace each `${NAME}`. Raises ToolsFileError for a variable that is missing: an empty one would hide it."""
    missing = [variable for variable in _REFERENCE.findall(text) if variable not in environ]
    if missing:
        raise ToolsFileError(f"{place}: the environment of the executor has no variable {', '.join(missing)}")
    return _REFERENCE.sub(lambda match: environ[match[1]], text)
