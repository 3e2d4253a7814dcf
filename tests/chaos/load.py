"""Mixed sessions: what clients do to threads while everything around them dies, and what they are told.

A session is one thread. Its client submits inputs in all modes, cancels, and comes back with the same
Idempotency-Key until it has an answer. The scripted model does what the inputs say.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from schemas.ids import TenantId, ThreadId, ThreadKey
from services.client.client import (
    Accepted,
    ClientLimits,
    JsonObject,
    RefusedError,
    ThreadlogClient,
    UnreachableError,
)
from tests.chaos.followers import Follower
from tests.chaos.ledger import CLASSES, PREFIX
from tests.chaos.observer import Observer, Seen

SCRIPT = r"""
rules:
  - match: {last_user: '^one (?P<tool>\S+) (?P<before>\d+) (?P<after>\d+) (?P<refuse>\w+)', steps: 0}
    calls:
      - {tool: "{{tool}}", args: {before_ms: "{{before}}", after_ms: "{{after}}", refuse: "{{refuse}}"}}
  - match: {last_user: '^two (?P<one>\S+) (?P<other>\S+) (?P<before>\d+) (?P<after>\d+)', steps: 0}
    calls:
      - {tool: "{{one}}", args: {before_ms: "{{before}}", after_ms: "{{after}}", refuse: "no"}}
      - {tool: "{{other}}", args: {before_ms: "{{after}}", after_ms: "{{before}}", refuse: "no"}}
  - match: {last_user: '^chain (?P<one>\S+) (?P<other>\S+) (?P<before>\d+) (?P<after>\d+)', steps: 0}
    calls:
      - {tool: "{{one}}", args: {before_ms: "{{before}}", after_ms: "{{after}}", refuse: "no"}}
  - match: {last_user: '^chain (?P<one>\S+) (?P<other>\S+) (?P<before>\d+) (?P<after>\d+)', steps: 1}
    calls:
      - {tool: "{{other}}", args: {before_ms: "{{before}}", after_ms: "{{after}}", refuse: "no"}}
  - match: {last_user: '^busy', steps: 0}
    error: {message: overloaded, retriable: true, times: 1}
    text: I was busy.
  - match: {last_user: '^slow', steps: 0}
    text: This answer comes word by word, and it takes its time, so that much can happen before it has ended.
    delta_seconds: 0.15
  - match: always
    text: Done.
"""

TENANTS = ("acme", "umbrella")
SESSIONS = 8
"""At once."""
FOLLOWERS_PER_SESSION = (1, 2)
ACTIONS_PER_SESSION = (2, 6)
PAUSE_SECONDS = 0.8
"""Between what a client does, on average."""
TURN_SECONDS = 25.0
"""How long a client waits for its turn before it does something else, or leaves."""
KEY_TWICE_SHARE = 0.1
"""Commands that are sent a second time with their key, though they were answered."""
LIMITS = ClientLimits(connect_seconds=2, answer_seconds=12, give_up_seconds=0.1, retry_after_seconds_max=1)
"""Of one instance; then the next one is asked."""
COMMAND_SECONDS = 90.0
"""How long a command is sent again."""
EXPECTED_REFUSALS = frozenset({409})

T = TypeVar("T")


class Acknowledged(NamedTuple):
    key: ThreadKey
    input: str
    event_id: str
    partition: int
    offset: int
    mode: str
    is_undecided: bool
    """It is stored, and the client was told to ask later whether it took effect."""


@dataclass(slots=True)
class Notes:
    """What clients were told."""

    inputs: list[Acknowledged] = field(default_factory=list)
    commands: Counter[str] = field(default_factory=Counter)
    """Answered with success, by kind."""
    refusals: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    """Answers that contradict what the same client was told before."""
    unanswered: int = 0


class Door:
    """The API through any of its instances."""

    def __init__(self, urls: Mapping[str, str], notes: Notes, rng: random.Random) -> None:
        self._urls = urls
        self._notes = notes
        self._rng = rng
        self._clients: dict[tuple[str, str, str], ThreadlogClient] = {}

    async def ask(
        self, tenant: str, subject: str, what: str, do: Callable[[ThreadlogClient], Awaitable[T]]
    ) -> T | None:
        """Until an instance answers. None where it refuses, or where none answers for too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMAND_SECONDS
        names = list(self._urls)
        self._rng.shuffle(names)
        while loop.time() < deadline:
            name = names[0]
            names.append(names.pop(0))
            try:
                answer = await do(self._client(name, tenant, subject))
            except UnreachableError:
                continue
            except RefusedError as error:
                self._notes.refusals[f"{what}: {error.problem}"] += 1
                if error.status not in EXPECTED_REFUSALS:
                    self._notes.unexpected.append(f"{what} at {name}: {error}")
                return None
            self._notes.commands[what] += 1
            return answer
        self._notes.unanswered += 1
        return None

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _client(self, name: str, tenant: str, subject: str) -> ThreadlogClient:
        found = self._clients.get((name, tenant, subject))
        if found is None:
            found = ThreadlogClient(self._urls[name], tenant=tenant, subject=subject, limits=LIMITS)
            self._clients[name, tenant, subject] = found
        return found


class Load:
    def __init__(
        self,
        urls: Mapping[str, str],
        observer: Observer,
        rng: random.Random,
        on_open: Callable[[Follower], None],
    ) -> None:
        self.notes = Notes()
        self.followers: list[Follower] = []
        self.door = Door(urls, self.notes, rng)
        self._urls = dict(urls)
        self._observer = observer
        self._rng = rng
        self._on_open = on_open
        self._drawn = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """No new sessions or inputs; what is under way is brought to its end."""
        self._stopping.set()

    async def run(self) -> None:
        """Sessions until `stop`, and until their clients have an answer to everything they asked."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SESSIONS):
                tasks.create_task(self._sessions(tasks))

    async def _sessions(self, tasks: asyncio.TaskGroup) -> None:
        while not self._stopping.is_set():
            await self._session(tasks)

    async def _session(self, tasks: asyncio.TaskGroup) -> None:
        rng, tenant = self._rng, self._rng.choice(TENANTS)
        text, config = self._text(), self._config()
        created = await self._twice(
            tenant,
            "create",
            lambda client, key: client.create_thread(text=text, config=config, idempotency_key=key),
        )
        if created is None:
            return
        seen = self._observer.of(ThreadKey(TenantId(tenant), ThreadId(created.thread)))
        self._note(seen.key, created, "queue")
        for _ in range(rng.randint(*FOLLOWERS_PER_SESSION)):
            follower = Follower(seen.key, self._urls, rng, on_open=self._on_open)
            self.followers.append(follower)
            tasks.create_task(follower.run())
        for _ in range(rng.randint(*ACTIONS_PER_SESSION)):
            await self._pause()
            if self._stopping.is_set():
                break
            await self._act(seen)
        await self._observer.until(
            seen, lambda state: state.exists and state.turn is None and not state.queue, TURN_SECONDS
        )

    async def _act(self, seen: Seen) -> None:
        action = self._rng.choices(
            ["queue", "after", "steer", "expected", "interrupt", "reject", "cancel"], [3, 4, 2, 1, 1, 1, 2]
        )[0]
        turn = seen.state.turn.turn if seen.state.turn is not None else None
        match action:
            case "after":
                await self._observer.until(seen, lambda state: state.turn is None, TURN_SECONDS)
                await self._submit(seen, None)
            case "expected" if turn is not None:
                await self._submit(seen, "steer", expected_turn=turn)
            case "cancel" if turn is not None:
                discard = self._rng.random() < 0.3
                await self._twice(
                    seen.key.tenant,
                    "cancel",
                    lambda client, key: client.cancel(seen.key.thread, turn, discard=discard, idempotency_key=key),
                )
            case "steer" | "interrupt" | "reject" | "queue":
                await self._submit(seen, action)
            case _:
                pass

    async def _submit(self, seen: Seen, mode: str | None, expected_turn: int | None = None) -> None:
        text = self._text()
        accepted = await self._twice(
            seen.key.tenant,
            f"input {mode or 'queue'}{'' if expected_turn is None else ' into its turn'}",
            lambda client, key: client.submit(
                seen.key.thread, text, mode=mode, expected_turn=expected_turn, idempotency_key=key
            ),
        )
        if accepted is not None:
            self._note(seen.key, accepted, mode or "queue")

    async def _twice(
        self, tenant: str, what: str, do: Callable[[ThreadlogClient, str], Awaitable[Accepted]]
    ) -> Accepted | None:
        """With a key; now and then once more with the same key, which must come to the same."""
        self._drawn += 1
        key = f"key-{self._drawn}"
        first = await self.door.ask(tenant, "ann", what, lambda client: do(client, key))
        if first is not None and self._rng.random() < KEY_TWICE_SHARE:
            second = await self.door.ask(tenant, "ann", f"{what} again", lambda client: do(client, key))
            if second is not None and _ids(second.body) != _ids(first.body):
                self.notes.unexpected.append(f"{what}: the same key gave {first.body} and then {second.body}")
        return first

    def _note(self, key: ThreadKey, accepted: Accepted, mode: str) -> None:
        events, position = accepted.body["events"], accepted.body["position"]
        assert isinstance(events, list)
        assert isinstance(position, dict)
        last = events[-1]
        assert isinstance(last, dict)
        self.notes.inputs.append(
            Acknowledged(
                key,
                str(accepted.body["input"]),
                str(last["id"]),
                int(str(position["partition"])),
                int(str(position["offset"])),
                mode,
                bool(accepted.body.get("undecided")),
            )
        )

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))

    def _text(self) -> str:
        rng = self._rng
        tools = [PREFIX + rng.choice(CLASSES) for _ in range(2)]
        before, after = (int(rng.choice([rng.uniform(0, 300), rng.uniform(300, 2_500)])) for _ in range(2))
        match rng.choices(["one", "two", "chain", "busy", "slow", "chat"], [6, 2, 3, 1, 2, 1])[0]:
            case "one":
                return f"one {tools[0]} {before} {after} {'yes' if rng.random() < 0.07 else 'no'}"
            case "two" | "chain" as kind:
                return f"{kind} {tools[0]} {tools[1]} {before // 2} {after // 2}"
            case other:
                return str(other)

    def _config(self) -> JsonObject:
        rng = self._rng
        policies: list[JsonObject] = [
            {},
            {"tool_policies": {f"{PREFIX}unsafe": {"approval": "always"}}},
            {"approval": "on_effect"},
        ]
        return {
            **rng.choices(policies, [6, 3, 2])[0],
            "on_unknown": rng.choices(["wait", "end"], [3, 1])[0],
            "on_recovery": rng.choices(["resume", "interrupt"], [6, 1])[0],
        }


def _ids(body: JsonObject) -> list[str]:
    events = body["events"]
    assert isinstance(events, list)
    return [str(event["id"]) for event in events if isinstance(event, dict)]
