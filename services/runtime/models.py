"""Which model answers: by the name in the thread's configuration."""

from collections.abc import Callable
from pathlib import Path

from services.runtime.model import Delta, Model, ModelAnswer, ModelFailure, ModelRequest
from services.runtime.provider import ProviderModel
from services.runtime.scripted import ScriptedModel, load_script
from services.runtime.settings import RuntimeSettings

SCRIPTED = "scripted"


class Models:
    """`scripted` plays this runtime's script; every other name is a pydantic-ai model string."""

    def __init__(self, scripted: Model | None, provider: Model) -> None:
        self._scripted = scripted
        self._provider = provider

    async def answer(self, request: ModelRequest, emit_delta: Callable[[Delta], None]) -> ModelAnswer | ModelFailure:
        if request.model != SCRIPTED:
            return await self._provider.answer(request, emit_delta)
        if self._scripted is None:
            return ModelFailure("this runtime has no script: set THREADLOG_RUNTIME_SCRIPT", retriable=False)
        return await self._scripted.answer(request, emit_delta)


def open_model(settings: RuntimeSettings) -> Models:
    """Raises ScriptError where the script cannot be read."""
    path = settings.runtime_script
    scripted = None if path is None else ScriptedModel(load_script(Path(path)))
    return Models(scripted, ProviderModel(timeout_seconds=settings.runtime_model_timeout_seconds))
