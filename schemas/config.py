"""What a thread is configured with. A turn pins the configuration that was in force when it started."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

ApprovalPolicy = Literal["never", "always", "on_effect"]
"""When a person has to approve a call. `on_effect` asks for every call that is not pure."""
PermissionProfile = Literal["read-only", "workspace-write", "full"]
"""What a tool's processes may write: nothing, the thread's workspace, or whatever the executor may."""


CONFIG_BYTES_MAX = 256 * 1024
"""Limit on a configuration with all its patches, as JSON in bytes. A record that begins another thread contains it
whole.
"""


class Frozen(BaseModel):
    """What every model of a record is: immutable, strict, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="strings")


class ToolPolicy(Frozen):
    approval: ApprovalPolicy | None = None
    """None: the thread's own policy."""


class Environment(Frozen):
    cwd: str = "."
    """Relative to the thread's workspace root, and inside it."""
    variables: tuple[str, ...] = ()
    """Names of the executor's variables that tools may see, beyond those that its operator allows to all."""


class Limits(Frozen):
    """A thread's own limits; each may only narrow what the service allows."""

    steps_per_turn: Annotated[int, Field(ge=1, le=10_000)] | None = None
    turn_seconds: Annotated[int, Field(ge=1)] | None = None
    parallel_calls: Annotated[int, Field(ge=1, le=1_000)] | None = None
    model_tries: Annotated[int, Field(ge=1, le=100)] | None = None
    turn_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that a turn may use, those of its child threads not among them."""
    context_tokens: Annotated[int, Field(ge=1)] | None = None
    """A larger context is compacted before the next step."""
    child_depth: Annotated[int, Field(ge=0, le=100)] | None = None
    """How many generations of child threads there may be below the topmost thread."""
    children_per_turn: Annotated[int, Field(ge=0, le=1_000)] | None = None
    parallel_tasks: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Tasks of a plan that run at once."""


class Skill(Frozen):
    """A skill is a folder with a SKILL.md, given by reference."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the artifact that contains the folder."""
    description: str = ""
    """What it is good for: the model chooses by it."""


class Config(Frozen):
    model: str
    model_settings: dict[str, JsonValue] = {}
    """Passed to the provider as they are: temperature, max_tokens, tool_choice …"""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the tools that the model is offered; None offers every tool of the catalog."""
    tool_policies: dict[str, ToolPolicy] = {}
    """Tool name → its own policy."""
    approval: ApprovalPolicy = "never"
    """Policy of all tools without one of their own."""
    permission_profile: PermissionProfile = "workspace-write"
    environment: Environment = Environment()
    limits: Limits = Limits()
    on_recovery: Literal["resume", "interrupt"] = "resume"
    """What becomes of a turn whose runtime died during a step: the model is asked again, or the turn is closed as
    interrupted.
    """
    on_unknown: Literal["wait", "end"] = "wait"
    """Whether a turn waits for a person to settle an unknown call, or ends naming it. A downstream that can be asked
    about it has had its time by then.
    """
    one_turn_per_input: bool = True
    """Whether each input gets a turn of its own; otherwise a turn takes all inputs that wait."""
    plan_approval: Literal["never", "always"] = "never"
    """Whether a person has to approve each version of a plan."""
    skills: tuple[Skill, ...] = ()
    """What the model may load."""
    routing: dict[str, str] = {}


def merge_patch(target: JsonValue, patch: JsonValue) -> JsonValue:
    """Return the value with the patch merged into it, as RFC 7396 describes."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
