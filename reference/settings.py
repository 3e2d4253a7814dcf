"""Writes `.env.example`: every setting of every service, with its default and its meaning (`make env-example`).

The meaning is the docstring below the field, or its `description`. What has no default is commented out: an empty
variable would be an empty text, not nothing.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pydantic_core
from pydantic import SecretStr

import services
from services.chassis.settings import Settings

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
        yield Setting(f"{prefix}{name}".upper(), default, meanings.get(name) or field.description or "")


def env_example(kinds: Iterable[type[Settings]]) -> str:
    parts = [HEAD]
    for kind in kinds:
        of = "All services" if kind is Settings else kind.__module__.split(".")[1].replace("_", "-")
        parts.append(f"\n# --- {of} ---\n")
        for setting in own_settings(kind):
            parts.extend(f"# {line}\n" for line in textwrap.wrap(setting.meaning, WIDTH))
            parts.append(
                f"# {setting.variable}=\n" if setting.default is None else f"{setting.variable}={setting.default}\n"
            )
    return "".join(parts)


def _as_variable(value: object) -> str | None:
    """As pydantic-settings reads it back: texts as they are, everything else as JSON, None by being absent."""
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
