"""The choice of a model by its name: the scripted one, or any model of a provider."""

from pathlib import Path

from services.runtime.models.port import EmitDelta, Model, ModelAnswer, ModelFailure, ModelRequest, NamedModels
from services.runtime.models.provider import ProviderModels
from services.runtime.models.scripted import ScriptedModel, read_script
from services.runtime.settings import RuntimeSettings

SCRIPTED = "scripted"


class NoScript:
    """Stands for the scripted model if no script is set, so a thread that names it fails with a reason to act on."""

    async def answer(self, _request: ModelRequest, _emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        return ModelFailure("this runtime has no script: set THREADLOG_RUNTIME_SCRIPT", retriable=False)


def open_model(settings: RuntimeSettings) -> Model:
    """Return a model that plays the script for the name `scripted`, and asks a provider for every other name.

    The other names are model strings of pydantic-ai. Raises ScriptError if the script cannot be read.
    """
    path = settings.runtime_script
    scripted: Model = NoScript() if path is None else ScriptedModel(read_script(Path(path)))
    return NamedModels({SCRIPTED: scripted}, ProviderModels(settings.runtime_model_timeout_seconds))
