"""Any model that pydantic-ai knows, by its name such as `openai:gpt-5` or `anthropic:claude-sonnet-4-5`.

The answer is streamed. What a provider wants back unchanged (signatures of its reasoning, ids of its items) travels in
the items' `provider`, see `provider_messages`. Retries are the runtime's: the SDK's own are turned off.

pydantic-ai is imported when the first such model is called. The import takes a second, so it runs in a thread, and a
runtime that plays a script never pays for it. That is why imports of pydantic-ai stand inside functions here.
"""

import asyncio
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from services.runtime.models.port import EmitDelta, ModelAnswer, ModelFailure, ModelRequest, ToolChoice

if TYPE_CHECKING:
    from pydantic_ai.models import Model as ProviderModel
    from pydantic_ai.settings import ModelSettings

MODELS_KEPT_MAX = 64
"""Models with their HTTP clients in memory. Names come from threads, so there has to be a limit; beyond it all go."""
RETRIABLE_STATUS = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed; from 500 on all may."""
TOO_LARGE_STATUS = 413
REFUSING_STATUS = frozenset({400, TOO_LARGE_STATUS, 422})
"""Statuses by which providers refuse a request, also one that is too long."""
TOO_LONG_WORDS = (
    "context length",
    "context limit",
    "context size",
    "context window",
    "input is too long",
    "input token count",
    "input tokens exceeded",
    "maximum prompt length",
    "number of tokens allowed",
    "prompt is too long",
    "too many tokens",
)
"""Words of providers and servers for a conversation that is too long. pydantic-ai knows only some of them, and the
runtime has to know: it then asks for a summary instead of failing the turn.
"""
ERROR_CHARACTERS_MAX = 2_000
"""Characters of an error that are kept. Some providers return the whole request in it."""


class ProviderModels:
    """Every model that pydantic-ai can infer from a name; a client is kept for each name that was used."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._models: dict[str, ProviderModel] = {}
        self._importing = asyncio.Lock()
        self._imported = False

    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        await self._import_once()
        try:
            model = self._model(request.model)
        except Exception as error:  # noqa: BLE001  # unknown name, missing SDK, missing key: each its own exception
            # None of these passes by waiting; an operator has to act.
            return ModelFailure(f"The model {request.model} cannot be used: {_told(error)}", retriable=False)
        return await self.ask(model, request, emit_delta)

    async def ask(
        self, model: "ProviderModel", request: ModelRequest, emit_delta: EmitDelta
    ) -> ModelAnswer | ModelFailure:
        """Ask this model. Apart from `answer` so that tests can give a model of their own."""
        from pydantic_ai.direct import model_request_stream

        from services.runtime.models.provider_messages import to_answer, to_delta, to_messages, to_parameters

        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                model_request_stream(
                    model,
                    to_messages(request.items, request.instructions),
                    model_settings=_settings(request.settings, request.tool_choice),
                    model_request_parameters=to_parameters(request.tools),
                ) as stream,
            ):
                async for event in stream:
                    delta = to_delta(event)
                    if delta is not None:
                        emit_delta(delta)
                return to_answer(stream.get())
        except Exception as error:  # noqa: BLE001  # judged one by one; what is not known to be passing is final
            return failure_of(error)

    async def _import_once(self) -> None:
        """Import pydantic-ai in a thread, so that the event loop and its heartbeats go on meanwhile."""
        if self._imported:
            return
        async with self._importing:
            if not self._imported:
                await asyncio.to_thread(importlib.import_module, "services.runtime.models.provider_messages")
                self._imported = True

    def _model(self, name: str) -> "ProviderModel":
        from pydantic_ai.models import infer_model

        if name not in self._models:
            if len(self._models) >= MODELS_KEPT_MAX:
                self._models.clear()
            self._models[name] = infer_model(name)
        return self._models[name]


def failure_of(error: Exception) -> ModelFailure:
    """Return what an exception of a model call means. What is not known to be temporary is final.

    A wrong "final" costs one turn, which its user sees and can repeat. A wrong "retriable" repeats a request that
    cannot succeed, on somebody's bill. The order matters: the classes of pydantic-ai are derived from each other.
    """
    from pydantic_ai import exceptions

    told = _told(error)
    if _is_too_long(error):
        return ModelFailure(told, retriable=False, too_long=True)
    match error:
        case exceptions.ModelQuotaExceededError():
            # Some providers send it as 429, but waiting does not help.
            return ModelFailure(told, retriable=False)
        case exceptions.ModelHTTPError():
            retriable = error.status_code in RETRIABLE_STATUS or error.status_code >= 500
            return ModelFailure(told, retriable, error.retry_after if retriable else None)
        case (
            exceptions.ModelConnectionError()
            | exceptions.ModelRequestTimeout()
            | exceptions.ModelRateLimitError()
            | exceptions.ModelUnavailableError()
            | exceptions.ModelServerError()
        ):
            return ModelFailure(told, retriable=True, retry_after_seconds=error.retry_after)
        case exceptions.ContentFilterError() | exceptions.ModelAPIError() | exceptions.UserError():
            return ModelFailure(told, retriable=False)
        case exceptions.UnexpectedModelBehavior():
            return ModelFailure(f"The provider's answer makes no sense: {told}", retriable=True)
        case TimeoutError():
            return ModelFailure("The model did not answer in time.", retriable=True)
        case OSError():
            return ModelFailure(told, retriable=True)
        case _:
            return ModelFailure(told, retriable=_is_transport_error(error))


def _is_too_long(error: Exception) -> bool:
    """Whether the provider says that the conversation is too long for the model."""
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ModelContextWindowExceededError):
        return True
    if not isinstance(error, exceptions.ModelHTTPError) or error.status_code not in REFUSING_STATUS:
        return False
    return error.status_code == TOO_LARGE_STATUS or any(words in str(error).lower() for words in TOO_LONG_WORDS)


def _is_transport_error(error: Exception) -> bool:
    """Whether the error is a transport error of httpx or httpx2 that a provider's SDK did not wrap.

    It is recognised by name: which of the two an SDK uses is its own affair, and neither is imported for this.
    """
    return any(parent.__name__ == "TransportError" for parent in type(error).__mro__)


def _settings(given: Mapping[str, JsonValue], tool_choice: ToolChoice | None) -> "ModelSettings":
    """Return the thread's model settings as pydantic-ai takes them. OpenAI's two ways to name a tool are understood.

    The SDK's retries are off unless the thread asks for them: the runtime retries, and its retries are on record.
    """
    settings: dict[str, object] = {"max_retries": 0, **given}
    choice = tool_choice if tool_choice is not None else given.get("tool_choice")
    match choice:
        case None:
            pass
        case {"function": {"name": str() as name}} | {"name": str() as name}:
            settings["tool_choice"] = [name]
        case tuple():
            settings["tool_choice"] = list(choice)
        case _:
            settings["tool_choice"] = choice
    return cast("ModelSettings", settings)


def _told(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:ERROR_CHARACTERS_MAX]
