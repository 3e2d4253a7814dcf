"""Write `.env.example`: every setting of every service, with its default and its meaning (`make env-example`).

Settings stand in three groups, which the type of a field names (`services.chassis.settings.Group`), and within a group
by service. The meaning is the docstring below the field, or its `description`. A setting without a default is commented
out, because an empty variable would set an empty text.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pydantic_core
from pydantic import SecretStr
from pydantic.fields import FieldInfo

import services
from services.chassis.settings import Group, Settings

HEAD = """\
# Every setting with its default. Written by `make env-example` from the settings classes; a test keeps it complete.
# Services read these as environment variables.
"""
WIDTH = 118


@dataclass(frozen=True, slots=True)
class Setting:
    variable: str
    default: str | None
    meaning: str
    group: Group


def settings_classes() -> list[type[Settings]]:
    """The shared class first, then each service's own, by name."""
    found = {Settings}
    for module in pkgutil.iter_modules(services.__path__, "services."):
        name = f"{module.name}.settings"
        if importlib.util.find_spec(name) is None:
            continue
        members = vars(importlib.import_module(name)).values()
        found |= {member for member in members if isinstance(member, type) and issubclass(member, Settings)}
    return sorted(found, key=lambda kind: (kind is not Settings, kind.__module__, kind.__name__))


def own_settings(kind: type[Settings]) -> Iterator[Setting]:
    """What `kind` adds to the class that it extends."""
    prefix = kind.model_config.get("env_prefix", "")
    meanings = _docstrings(kind)
    for name in kind.__annotations__:
        if name not in kind.model_fields:
            continue
        field = kind.model_fields[name]
        default = None if field.is_required() else _as_variable(field.get_default(call_default_factory=True))
        group = group_of(field)
        meaning = meanings.get(name) or field.description or ""
        yield Setting(f"{prefix}{name}".upper(), default, meaning, Group.SOME if group is None else group)


def group_of(field: FieldInfo) -> Group | None:
    """Return the group that the field's type names, or None if it names none."""
    return next((mark for mark in field.metadata if isinstance(mark, Group)), None)


def env_example(kinds: Sequence[type[Settings]]) -> str:
    parts = [HEAD]
    for group in Group:
        parts.append(f"\n# ===== {group.value} =====\n")
        for kind in kinds:
            parts.extend(_section(kind, [setting for setting in own_settings(kind) if setting.group is group]))
    return "".join(parts)


def _section(kind: type[Settings], settings: Sequence[Setting]) -> Iterator[str]:
    if settings:
        yield f"\n# --- {_reader_of(kind)} ---\n"
    for setting in settings:
        yield from (f"# {line}\n" for line in textwrap.wrap(setting.meaning, WIDTH))
        yield f"# {setting.variable}=\n" if setting.default is None else f"{setting.variable}={setting.default}\n"


def _reader_of(kind: type[Settings]) -> str:
    """Return the name of the service that reads the settings of `kind`."""
    return "All services" if kind is Settings else kind.__module__.split(".")[1].replace("_", "-")


def _as_variable(value: object) -> str | None:
    """Return the value as pydantic-settings reads it back: texts as they are, the rest as JSON, None by absence."""
    plain = pydantic_core.to_jsonable_python(value.get_secret_value() if isinstance(value, SecretStr) else value)
    match plain:
        case None | str():
            return plain
        case _:
            return json.dumps(plain)


def _docstrings(kind: type[Settings]) -> dict[str, str]:
    definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found


if __name__ == "__main__":
    sys.stdout.write(env_example(settings_classes()))
