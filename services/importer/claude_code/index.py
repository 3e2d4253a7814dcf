"""The first reading of a Claude Code session: which record belongs to which thread.

A session is a tree by `uuid` and `parentUuid`, appended line by line. The branch of the newest leaf is the main line.
Another branch is a fork where a person took the word in it: they went back, and said something else. What hangs on the
tree otherwise (the results of parallel calls, a call that a killed session left behind) belongs to the thread that it
hangs on. Records of sub-agents within the file have roots of their own and become child threads.

Of each record some 100 bytes are kept: hashes of its uuid and its parent's, its line, kind and thread.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Literal

from services.importer.claude_code.places import Places
from services.importer.claude_code.records import (
    AGENT_TOOLS,
    BEGINNING,
    BESIDE,
    UNDERSTOOD,
    WARM_UP,
    Kind,
    content_of,
    copied_from,
    first_text,
    kind_of,
    milliseconds,
    text_of,
)
from services.importer.lines import Line, Record, Wanted
from services.importer.model import Counts

NOWHERE = -1
"""Stands for a node that is not there."""
UNSEEN, ON_THE_WAY, FOREIGN = -1, -2, -3
NO_PARENT, UNSAID_PARENT = 0, 1
"""In place of a hash. A record that does not speak of a parent follows the one before it."""
MAIN = 0
"""Place of the main thread."""
LATE_RESULTS_MAX = 10_000
"""Results that come after another prompt are held from the first reading on; more of them are counted and left out."""
NO_LEAVES = frozenset({Kind.LINK, Kind.RESULT})
"""Kinds of records that do not end the main line. A result may come long after its call, when the conversation is
elsewhere.
"""
NO_ROOTS = frozenset(
    {Kind.SUMMARY, Kind.ANSWER, Kind.SILENCE, Kind.RESULT, Kind.INTERRUPTION, Kind.FAILED_REQUEST, Kind.TURN_END}
)
"""Such a record follows the one before it, even where it says that it follows none: old versions compacted so."""
SESSIONS_MAX = 60_000
"""Different session ids that one file may name; records of more are taken for the file's own."""
BACK_MAX = 1_000
"""How far back a compaction looks for the record that it names, and a leaf for one of its own session."""
HELD_BYTES_MAX = 8 << 20
"""Bytes of lines whose records are held for the next reading."""
LEAVES_MAX = 1_000
"""How many of the newest records may be another session's before the newest one is taken all the same."""


@dataclass(slots=True)
class ThreadPlan:
    """A file may have threads beside its main one; this is where one of them hangs."""

    source_id: str
    kind: Literal["fork", "child"]
    parent: int
    """Place of the thread that it hangs on."""
    attach: int
    """Node that it hangs on, or NOWHERE."""
    first: int
    """The thread's first node."""
    call: str | None = None
    """The call that it works for."""
    first_line: int = 0
    last_line: int = 0
    is_warm_up: bool = False


@dataclass(slots=True)
class Index:
    """This is what the first reading finds out."""

    session: str | None = None
    """The file's own session id."""
    agent: str | None = None
    """Where the whole file is the transcript of a sub-agent: its id."""
    tool_version: str | None = None
    model: str | None = None
    cwd: str | None = None
    created_ms: int | None = None
    first_line: int = 1
    wanted: Wanted = field(default_factory=lambda: Wanted(HELD_BYTES_MAX))
    """Lines that say something, or that a thread begins with or hangs on."""
    kinds: bytearray = field(default_factory=bytearray)
    """Kind of each node."""
    lines: "array[int]" = field(default_factory=lambda: array("L"))
    """Line of each node."""
    threads: "array[int]" = field(default_factory=lambda: array("i"))
    """Place of each node's thread."""
    plans: list[ThreadPlan] = field(default_factory=list)
    """Threads 1, 2, …; 0 is the main one."""
    is_warm_up: bool = False
    children: dict[str, str] = field(default_factory=dict)
    """For sub-agents within the file: call → `source_id` of the thread that worked for it."""
    late: dict[str, tuple[int, Record]] = field(default_factory=dict)
    """Call → result that does not follow it within its turn."""
    goes_on_from: str | None = None
    """Uuid of what the first record follows, where that is in no line of this file."""
    copied: int = NOWHERE
    """The last node that is a copy of another session's record."""
    copied_uuid: str | None = None
    copied_session: str | None = None
    leaves: dict[str, int] = field(default_factory=dict)
    """Uuid → node that a summary is about."""


def read_index(lines: Iterable[Line], counts: Counts, name: str) -> Index:
    """Return the index of a file. `name` is the file's name, which may contain the session's id."""
    reading = _Reading(counts)
    for line in lines:
        reading.take(line)
    return reading.done(name)


class _Reading:
    """Does the first reading, line by line."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._index = Index()
        self._by_uuid = Places()
        self._parents = array("q")
        """Hashes of uuids, and then nodes."""
        self._sides = bytearray()
        self._sessions = array("H")
        self._session_names: dict[str, int] = {"": 0}
        self._votes: dict[int, int] = {}
        self._boundaries: list[int] = []
        self._marked: list[tuple[int, str, str | None]] = []
        """Nodes that say which session they were copied from, the last one of each, and its uuid."""
        self._prompts_of_sides: dict[int, tuple[int, bool]] = {}
        """Node of a sub-agent → hash of what it was told, and whether it is a warm-up."""
        self._begin_uuids: dict[int, str] = {}
        self._has_main = False
        self._agents: dict[int, str | None] = {}
        """Node of a sub-agent → its id."""
        self._calls_of_agents: list[tuple[str, int, int]] = []
        """Call id, hash of the prompt, node."""
        self._open_calls: dict[str, int] = {}
        self._seen_calls: set[int] = set()
        self._turn = 0
        self._users: dict[int, tuple[int, str]] = {}
        """Session → the last prompt that names it, and its uuid."""
        self._leaf_names: set[str] = set()
        self._agent_names: dict[str, str] = {}

    # One line after another

    def take(self, line: Line) -> None:
        """Take one line."""
        record = line.record
        if record is None:
            self._counts.bad_lines += 1
            return
        self._counts.records += 1
        kind_name = record.get("type")
        if type(kind_name) is not str or not kind_name:
            kind_name = "without a type"
        if kind_name not in UNDERSTOOD:
            self._counts.pass_over(kind_name[:60])
        session = self._session_of(record)
        if kind_name == "summary" and (leaf := text_of(record, "leafUuid")) is not None:
            self._leaf_names.add(leaf)
        uuid = text_of(record, "uuid")
        if uuid is None and kind_name not in {"user", "assistant"}:
            self._vote(session, 4)
            if kind_name in BESIDE:
                self._index.wanted.want(line)
            return
        self._add(line, record, uuid, session)

    def _session_of(self, record: Record) -> int:
        """Return a small number for the session that the record names; 0 where it names none."""
        name = record.get("sessionId")
        if type(name) is not str:
            return 0
        place = self._session_names.get(name)
        if place is None:
            place = len(self._session_names) if len(self._session_names) < SESSIONS_MAX else 0
            self._session_names[name] = place
        return place

    def _vote(self, session: int, weight: int) -> None:
        """Count what speaks for a session being the file's own."""
        if session:
            self._votes[session] = self._votes.get(session, 0) + weight

    def _add(self, line: Line, record: Record, uuid: str | None, session: int) -> None:
        """Add a record as a node. A uuid that comes a second time is counted and left out."""
        index, number = self._index, line.number
        node = len(index.kinds)
        if uuid is not None and self._by_uuid.put(hash(uuid), node) != node:
            self._counts.pass_over("duplicate uuid")
            return
        kind = kind_of(record)
        side = record.get("isSidechain") is True
        index.kinds.append(kind)
        index.lines.append(number)
        self._sides.append(side)
        self._sessions.append(session)
        if side:
            self._agents[node] = self._agent_of(record)
        else:
            self._has_main = True
        parent = record.get("parentUuid")
        if parent is None and kind is Kind.BOUNDARY:
            parent = record.get("logicalParentUuid")
            self._boundaries.append(node)
        if node == 0 and isinstance(parent, str):
            index.goes_on_from = parent
        if isinstance(parent, str):
            self._parents.append(hash(parent))
        else:
            begins = "parentUuid" in record and kind not in NO_ROOTS
            self._parents.append(NO_PARENT if begins else UNSAID_PARENT)
        if node == 0:
            index.tool_version = text_of(record, "version")
            index.cwd = text_of(record, "cwd")
            index.created_ms = milliseconds(record)
            index.first_line = number
        if kind is not Kind.LINK:
            index.wanted.want(line)
            self._note(node, number, record, kind, uuid, session, side)

    def _agent_of(self, record: Record) -> str | None:
        """Return one string for each agent, however often it comes."""
        agent = text_of(record, "agentId")
        return self._agent_names.setdefault(agent, agent) if agent is not None else None

    def _note(
        self, node: int, number: int, record: Record, kind: Kind, uuid: str | None, session: int, side: bool
    ) -> None:
        """Note what a record means for the threads."""
        source = copied_from(record)
        if source is not None:
            self._mark(node, source, uuid)
        if kind is Kind.ANSWER:
            self._vote(session, 4)
            self._note_answer(node, record, side)
        elif kind is Kind.RESULT:
            self._vote(session, 4)
            self._note_results(number, record)
        elif kind is Kind.EMPTY:
            self._counts.pass_over("user without words")
        else:
            self._vote(session, 1)
        if kind in BEGINNING:
            name = uuid or f"line {number}"
            self._begin_uuids[node] = name
            self._turn += 0 if side and self._has_main else 1
            if session:
                self._users[session] = (node, name)
            if side:
                text = first_text(content_of(record))
                self._prompts_of_sides[node] = (hash(text), text.strip() == WARM_UP)

    def _mark(self, node: int, source: str, uuid: str | None) -> None:
        """Note that the record was copied from another session."""
        if self._marked and self._marked[-1][1] == source:
            self._marked[-1] = (node, source, uuid)
        else:
            self._marked.append((node, source, uuid))

    def _note_answer(self, node: int, record: Record, side: bool) -> None:
        """Note the calls of an answer, to find results that come late."""
        message = record.get("message")
        if not isinstance(message, dict):
            return
        if self._index.model is None and (model := text_of(message, "model")) is not None and model[0] != "<":
            self._index.model = model
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, dict) or block.get("type") != "tool_use":
                continue
            name = text_of(block, "id")
            if name is None or hash(name) in self._seen_calls:
                continue
            self._seen_calls.add(hash(name))
            self._open_calls[name] = -1 if side and self._has_main else self._turn
            if text_of(block, "name") in AGENT_TOOLS and isinstance(args := block.get("input"), dict):
                self._calls_of_agents.append((name, hash(text_of(args, "prompt") or ""), node))

    def _note_results(self, number: int, record: Record) -> None:
        """Keep results that come after their turn: they are given to their call in the second reading."""
        content = content_of(record)
        for block in content if isinstance(content, list) else ():
            name = text_of(block, "tool_use_id") if isinstance(block, dict) else None
            if name is None:
                continue
            turn = self._open_calls.pop(name, None)
            if turn in {-1, self._turn} or name in self._index.late:
                continue
            if turn is None and hash(name) in self._seen_calls:
                self._counts.pass_over("second result")
            elif len(self._index.late) < LATE_RESULTS_MAX:
                self._index.late[name] = (number, record)
            else:
                self._counts.pass_over("late result")

    # All lines read

    def done(self, name: str) -> Index:
        """Return the index, once all lines are read."""
        index = self._index
        own = self._own_session(name)
        index.session = next((text for text, place in self._session_names.items() if place == own), None) or None
        for orphan in [call for call in index.late if hash(call) not in self._seen_calls]:
            self._counts.pass_over("result without a call")
            del index.late[orphan]
        index.leaves = {leaf: node for leaf in self._leaf_names if (node := self._by_uuid.get(hash(leaf))) != NOWHERE}
        if self._sides and not self._has_main:
            self._take_for_an_agent(name)
        if index.goes_on_from is not None and self._by_uuid.get(hash(index.goes_on_from)) != NOWHERE:
            index.goes_on_from = None
        self._resolve_parents(own)
        self._assign_threads(own)
        self._find_copies(own)
        self._link_agents()
        return index

    def _own_session(self, name: str) -> int:
        """Return the file's own session: by the file's name, otherwise by what most records say. Copied prompts may
        name another one.
        """
        named = self._session_names.get(PurePath(name).stem)
        if named is not None:
            return named
        return max(self._votes, key=lambda session: (self._votes[session], session), default=0)

    def _take_for_an_agent(self, name: str) -> None:
        """Take the whole file for the transcript of a sub-agent."""
        index = self._index
        index.agent = self._agents[0] or PurePath(name).stem.removeprefix("agent-")
        first = self._prompts_of_sides.get(min(self._prompts_of_sides, default=NOWHERE))
        index.is_warm_up = first is not None and first[1]
        self._prompts_of_sides = {}
        self._sides = bytearray(len(self._sides))

    def _resolve_parents(self, own: int) -> None:
        """Turn hashes of parents into nodes. A record whose parent is missing follows the one before it."""
        parents, sides = self._parents, self._sides
        last = [NOWHERE, NOWHERE]
        """The node before, of the conversation and of sub-agents."""
        for node, parent in enumerate(parents):
            place = NOWHERE if parent == NO_PARENT else self._by_uuid.get(parent)
            side = sides[node]
            if parent != NO_PARENT and place == NOWHERE:
                if self._sessions[node] in {own, 0}:
                    place = last[side]
                if parent != UNSAID_PARENT:
                    self._counts.pass_over("parent not in the file")
            parents[node] = place if place != node else NOWHERE
            last[side] = node
        for node in self._boundaries:
            self._follow(node)

    def _follow(self, node: int) -> None:
        """Let a compaction follow the newest record before it, where that one descends from the record that the
        compaction names: the summary speaks of all of them.
        """
        named = self._parents[node]
        newest = node - 1
        while newest > NOWHERE and (self._sides[newest] != self._sides[node]):
            newest -= 1
        step = newest
        for _ in range(BACK_MAX):
            if step in {named, NOWHERE}:
                break
            step = self._parents[step]
        if named in {NOWHERE, step}:
            self._parents[node] = newest

    def _assign_threads(self, own: int) -> None:
        """Assign each node to a thread: the newest leaf's branch is the main one, other branches hang on what they
        branch from.
        """
        index = self._index
        parents, sides = self._parents, self._sides
        main_is_known = False
        threads = array("i", [UNSEEN]) * len(sides)
        index.threads = threads
        roots_of_agents: dict[str | int, int] = {}
        for newest in self._newest_first(own):
            if threads[newest] != UNSEEN:
                continue
            path = array("i")
            node = newest
            while node != NOWHERE and threads[node] == UNSEEN and sides[node] == sides[newest]:
                threads[node] = ON_THE_WAY
                path.append(node)
                node = parents[node]
            if node != NOWHERE and threads[node] == ON_THE_WAY:
                self._counts.pass_over("cycle")
                node = NOWHERE
            path.reverse()
            if sides[newest] and (node == NOWHERE or not sides[node]):
                self._new_child(path, node, roots_of_agents)
            elif not main_is_known:
                main_is_known = True
                _give(threads, path, MAIN)
            else:
                self._hang(path, node, own)
        for plan in index.plans:
            plan.first_line = plan.last_line = index.lines[plan.first]
        for node, thread in enumerate(threads):
            if thread > MAIN:
                plan = index.plans[thread - 1]
                plan.last_line = max(plan.last_line, index.lines[node])
                plan.first_line = min(plan.first_line, index.lines[node])
        for plan in index.plans:
            self._want_link(plan.attach)
            self._want_link(bisect_left(index.lines, plan.first_line))

    def _want_link(self, node: int) -> None:
        """Want the line of a record that a thread begins with, or hangs on: what it says beside its place in the chain
        counts there.
        """
        index = self._index
        if node != NOWHERE and index.kinds[node] == Kind.LINK:
            index.wanted.want_number(index.lines[node])

    def _newest_first(self, own: int) -> Iterable[int]:
        """Yield the newest leaf of the main line, and then every node from the newest on."""
        nodes = range(len(self._sides) - 1, -1, -1)
        speaking = (n for n in nodes if not self._sides[n] and self._index.kinds[n] not in NO_LEAVES)
        main = next((n for n in islice(speaking, LEAVES_MAX) if self._is_own(n, own)), None)
        if main is None:
            main = next((n for n in nodes if not self._sides[n]), None)
        if main is not None:
            yield main
        yield from nodes

    def _is_own(self, node: int, own: int) -> bool:
        """Return whether the node, or what it follows, is of this session. What was copied into it may name another."""
        for _ in range(BACK_MAX):
            if node == NOWHERE:
                return False
            if self._sessions[node] in {own, 0}:
                return True
            node = self._parents[node]
        return False

    def _new_child(self, path: "array[int]", attach: int, roots: dict[str | int, int]) -> None:
        """Make the thread of a sub-agent, or extend it: its records may have several roots."""
        index = self._index
        root = path[0]
        agent = self._agents.get(root)
        place = roots.get(agent) if agent is not None else None
        if place is None:
            _, warm_up = self._prompts_of_sides.get(root, (0, False))
            name = agent or self._begin_uuids.get(root, f"line {index.lines[root]}")
            parent = max(index.threads[attach], MAIN) if attach != NOWHERE else MAIN
            index.plans.append(ThreadPlan(f"{index.session}:{name}", "child", parent, attach, root, is_warm_up=warm_up))
            place = len(index.plans)
            roots[agent or root] = place
        _give(index.threads, path, place)

    def _hang(self, path: "array[int]", node: int, own: int) -> None:
        """Give a branch to the thread that it hangs on, or make a fork of it where a person speaks in it."""
        index = self._index
        thread = index.threads[node] if node != NOWHERE else UNSEEN
        if thread < MAIN:
            foreign = all(self._sessions[part] not in {own, 0} for part in path)
            thread, node = FOREIGN if foreign else MAIN, NOWHERE
        begins = next((n for n, part in enumerate(path) if index.kinds[part] in BEGINNING), None)
        if thread == FOREIGN or begins is None or self._sides[path[0]]:
            _give(index.threads, path, thread)
            for _ in path if thread == FOREIGN else ():
                self._counts.pass_over("another session")
            return
        _give(index.threads, path[:begins], thread)
        attach, first = path[begins - 1] if begins else node, path[begins]
        index.plans.append(ThreadPlan(f"{index.session}:{self._begin_uuids[first]}", "fork", thread, attach, first))
        _give(index.threads, path[begins:], len(index.plans))

    def _find_copies(self, own: int) -> None:
        """Find the last record that was copied: the fork shares everything up to its turn."""
        index = self._index
        names = {place: name for name, place in self._session_names.items()}
        found = [(node, source, uuid) for node, source, uuid in self._marked if source != index.session]
        found += [(node, names[session], uuid) for session, (node, uuid) in self._users.items() if session != own]
        found = [copy for copy in found if index.threads[copy[0]] == MAIN]
        if found:
            index.copied, index.copied_session, index.copied_uuid = max(found, key=lambda copy: copy[0])

    def _link_agents(self) -> None:
        """Link sub-agents to their calls by the prompt: transcripts within the file name no call."""
        waiting: dict[int, deque[tuple[str, int]]] = {}
        for call, told, node in self._calls_of_agents:
            waiting.setdefault(told, deque()).append((call, node))
        index = self._index
        for plan in sorted(index.plans, key=lambda plan: plan.first):
            told, warm_up = self._prompts_of_sides.get(plan.first, (0, True))
            if plan.kind != "child" or warm_up:
                continue
            calls = waiting.get(told)
            if calls and calls[0][1] < plan.first:
                plan.call, node = calls.popleft()
                plan.parent = max(index.threads[node], MAIN)
                index.children[plan.call] = plan.source_id


def _give(threads: "array[int]", path: "array[int]", thread: int) -> None:
    """Assign the nodes to the thread."""
    for node in path:
        threads[node] = thread
