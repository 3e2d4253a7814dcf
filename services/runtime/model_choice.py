"""Which models this runtime has, by its settings."""

from pathlib import Path

from services.runtime.models.port import EmitDelta, Model, ModelAnswer, ModelFailure, ModelRequest, NamedModels
from services.runtime.models.provider import ProviderModels
from services.runtime.models.scripted import ScriptedModel, read_script
from services.runtime.settings import RuntimeSettings

SCRIPTED = "scripted"


class NoScript:
    async def answer(self, _request: ModelRequest, _emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        return ModelFailure("this runtime has no script: set THREADLOG_RUNTIME_SCRIPT", retriable=False)


def open_model(settings: RuntimeSettings) -> Model:
    """`scripted` plays this runtime's script; every other name is a pydantic-ai model string.

    Raises ScriptError where the script cannot be read.
    """
    path = settings.runtime_script
    scripted: Model = NoScript() if path is None else ScriptedModel(read_script(Path(path)))
    return NamedModels({SCRIPTED: scripted}, ProviderModels(settings.runtime_model_timeout_seconds))
