"""Settings with other limits than the product's: shorter waits, smaller batches."""

from dataclasses import fields, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

from services.projector.limits import ProjectorLimits, WindowLimits
from services.projector.settings import ProjectorSettings, RollupsSettings

Model = TypeVar("Model", bound=ProjectorSettings)
LIMITS = frozenset(field.name for field in fields(ProjectorLimits))
WINDOW_LIMITS = frozenset(field.name for field in fields(WindowLimits))


def with_limits(model: type[Model], **changed: Any) -> type[Model]:
    """Return the settings class with these limits changed."""
    return _with_limits(model, tuple(sorted(changed.items())))


def split(changed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of `changed` are limits, and what are settings."""
    limits = {name: value for name, value in changed.items() if name in LIMITS | WINDOW_LIMITS}
    return limits, {name: value for name, value in changed.items() if name not in limits}


@cache
def _with_limits(model: type[Any], changed: tuple[tuple[str, Any], ...]) -> type[Any]:
    of_projector = {name: value for name, value in changed if name in LIMITS}
    of_windows = {name: value for name, value in changed if name in WINDOW_LIMITS}
    assert len(of_projector) + len(of_windows) == len(changed), changed
    own: dict[str, Any] = {
        "__module__": model.__module__,
        "__annotations__": {"limits": ClassVar[ProjectorLimits]},
        "limits": replace(model.limits, **of_projector),
    }
    if issubclass(model, RollupsSettings):
        own["__annotations__"]["window_limits"] = ClassVar[WindowLimits]
        own["window_limits"] = replace(model.window_limits, **of_windows)
    return type(model.__name__, (model,), own)
