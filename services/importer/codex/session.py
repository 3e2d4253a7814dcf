"""Codex's sessions, from bare items (0.29) through envelopes to numbered records (0.171).

A turn lies between `task_started` and `task_complete` or `turn_aborted`. Where a version has none of these, it begins
with a person's prompt and ends before the next one. Texts stand there twice, as event and as item. A response of the
model ends where its tokens are counted, where the next request begins (`turn_context`; in bare files `state`), or
where a call's result is there and the model says something new.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

from schemas.events import Failure
from services.importer.codex.calls import End, arguments_of
from services.importer.codex.records import (
    image_of,
    injected_tag,
    is_known_injection,
    said_by_user,
    same,
    texts_of,
    word,
)
from services.importer.codex.thread import CodexThread, Payload
from services.importer.codex.turns import OpenCall, OpenTurn
from services.importer.companions import Companions
from services.importer.lines import Line
from services.importer.model import Compaction, Counts, Header, Origin, Piece, Title

NORMALISER_VERSION = 1
"""Goes up with every change of what the same file becomes. It is part of the source of every event."""

COMPACTED_NOTICE = "Compact task completed"
"""Codex 0.36 says this in the model's place after a compaction."""
NOTHING_TO_KEEP_ITEMS = frozenset({"ghost_snapshot", "compaction", "compaction_summary", "context_compaction"})
"""Types of items that a thread keeps nothing of."""
NOTHING_TO_KEEP_EVENTS = frozenset(
    {
        "context_compacted",
        "entered_review_mode",
        "exec_command_begin",
        "exited_review_mode",
        "mcp_tool_call_begin",
        "patch_apply_begin",
        "thread_settings_applied",
        "undo_completed",
        "web_search_begin",
        "web_search_end",
    }
)
"""Types of events that a thread keeps nothing of: other records say the same, or nobody needs it."""
NOTHING_TO_KEEP_TURN_ITEMS = frozenset({"ContextCompaction", "ImageGeneration", "Plan", "WebSearch"})
"""Types of items of a turn that a thread keeps nothing of."""
ENDS_OF_CALLS = frozenset({"CommandExecution", "FileChange", "McpToolCall", "CollabAgentToolCall", "DynamicToolCall"})
"""Types of items of a turn that tell how a call ended."""


def normalise(lines: Iterable[Line], counts: Counts, *, companions: Companions) -> Iterator[Piece]:
    """Yield the pieces of a session. `lines` is read twice where a fork contains copies of its parent's turns."""
    thread = CodexThread(counts, companions.name)
    for line in lines:
        _take(thread, line)
        if thread.pieces:
            yield from _with_shared_turns(thread, lines, companions)
    thread.end()
    yield from _with_shared_turns(thread, lines, companions)


def _with_shared_turns(thread: CodexThread, lines: Iterable[Line], companions: Companions) -> Iterator[Piece]:
    """Yield the pieces that are ready. A fork's header waits until it is known how many of its turns are copies."""
    pieces, thread.pieces = thread.pieces, []
    for piece in pieces:
        if isinstance(piece, Header) and piece.parent is not None and piece.parent.is_copied:
            yield thread.header(_count_copied(lines, companions))
        else:
            yield piece


def _count_copied(lines: Iterable[Line], companions: Companions) -> int:
    """Return how many turns were copied from the parent, by reading the file up to the first own turn."""
    thread = CodexThread(Counts(), companions.name)
    for line in lines:
        _take(thread, line)
        thread.pieces.clear()
        if thread.has_own_turns:
            break
    else:
        thread.end()
    return thread.copied_turns


# Records


def _take(thread: CodexThread, line: Line) -> None:
    """Take one line. Codex writes some records twice, with the same time or the same ordinal: only the first one
    counts.
    """
    record = line.record
    if record is None:
        thread.counts.bad_lines += 1
        return
    thread.counts.records += 1
    thread.line = line.number
    payload = record.get("payload")
    kind = record.get("type")
    if type(payload) is not dict or type(kind) is not str:
        _take_bare(thread, record, kind)
        return
    stamp = record.get("timestamp")
    if stamp == thread.stamp and same(record, thread.previous):
        thread.counts.pass_over(f"{kind}, the same as before")
        return
    thread.previous = record
    thread.stamp = stamp
    ordinal = record.get("ordinal")
    thread.ordinal = ordinal if type(ordinal) is int and ordinal >= 0 else None
    if thread.ordinal is not None and not thread.ordinals.take(thread.ordinal):
        thread.counts.pass_over(f"{kind}, its ordinal the second time")
        return
    handle = _RECORDS.get(kind)
    if handle is None:
        thread.counts.pass_over(kind)
    else:
        handle(thread, payload)


def _take_bare(thread: CodexThread, record: Payload, kind: object) -> None:
    """Take a record without an envelope, as 0.29 writes them."""
    thread.stamp = thread.ordinal = None
    if type(kind) is str and kind in _ITEMS:
        _response_item(thread, record)
    elif record.get("record_type") == "state":
        thread.seal()
    elif kind is None and word(record.get("id")) is not None and "timestamp" in record:
        thread.take_meta(record)
    else:
        thread.counts.pass_over(kind if type(kind) is str else "a record without a type")


def _turn_context(thread: CodexThread, context: Payload) -> None:
    """A request to the model follows."""
    thread.take_context(word(context.get("model")), word(context.get("cwd")))


def _compacted(thread: CodexThread, payload: Payload) -> None:
    message = payload.get("message")
    thread.compact(
        message if type(message) is str else "",
        payload.get("compaction_response_id"),
        payload.get("replacement_history"),
    )


def _token_usage_record(thread: CodexThread, record: Payload) -> None:
    """The provider's count for one response, from 0.171."""
    thread.id = thread.id or word(record.get("thread_id"))
    thread.count_response(record)


def _nothing(thread: CodexThread, payload: Payload) -> None:
    """The thread keeps nothing of it."""


# Items: what the model is shown


def _response_item(thread: CodexThread, item: Payload) -> None:
    """An item is what the model is shown."""
    kind = item.get("type")
    handle = _ITEMS.get(kind) if type(kind) is str else None
    if handle is None:
        thread.counts.pass_over(f"response_item {kind}" if type(kind) is str else "response_item without a type")
    else:
        handle(thread, item)


def _message(thread: CodexThread, item: Payload) -> None:
    role = item.get("role")
    if role == "assistant":
        texts = texts_of(item.get("content"))
        step = thread.model_speaks(_turn_of(item)) if texts else None
        if step is not None:
            for text in texts:
                step.say("text", text, by_item=True)
    elif role == "user":
        _user_item(thread, item)
    elif role not in ("developer", "system"):
        thread.counts.pass_over("response_item message of an unknown role")


def _user_item(thread: CodexThread, item: Payload) -> None:
    """A user's message may be a person's, or text that Codex put there for the model. Tags tell them apart; where the
    version records what each part is, that decides.
    """
    content = item.get("content")
    if type(content) is not list:
        content = [{"text": content}]
    metadata = item.get("internal_chat_message_metadata_passthrough")
    kinds = metadata.get("content_item_kinds") if type(metadata) is dict else None
    texts, images = said_by_user(content, kinds)
    if type(kinds) is not list or "user.text" not in kinds:
        tag = injected_tag("\n".join(texts)) if texts else None
        if tag is not None and is_known_injection(tag):
            return
        if tag is not None and thread.stamp is not None:
            # Where events tell what a person wrote, theirs will tell of this too.
            thread.counts.pass_over(f"response_item message in <{tag[:40]}>")
            return
    if texts or images:
        thread.prompt(texts, images, word(item.get("id")), _turn_of(item), by_item=True)


def _reasoning(thread: CodexThread, item: Payload) -> None:
    step = thread.model_speaks(_turn_of(item))
    if step is None:
        return
    step.has_items = True
    for text in texts_of(item.get("summary")) or texts_of(item.get("content")):
        step.say("reasoning", text, by_item=True)


def _function_call(thread: CodexThread, item: Payload) -> None:
    """The name gets its namespace, as the model sees it."""
    args, malformed = arguments_of(item.get("arguments"))
    name = word(item.get("name")) or "unnamed"
    namespace = word(item.get("namespace"))
    if namespace is not None:
        name = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}.{name}"
    thread.call(item, _turn_of(item), name, args, malformed)


def _custom_tool_call(thread: CodexThread, item: Payload) -> None:
    thread.call(item, _turn_of(item), word(item.get("name")) or "unnamed", {"input": item.get("input")})


def _local_shell_call(thread: CodexThread, item: Payload) -> None:
    action = item.get("action")
    thread.call(item, _turn_of(item), "local_shell", action if type(action) is dict else {})


def _tool_search_call(thread: CodexThread, item: Payload) -> None:
    args, malformed = arguments_of(item.get("arguments"))
    thread.call(item, _turn_of(item), "tool_search", args, malformed)


def _web_search_call(thread: CodexThread, item: Payload) -> None:
    action = item.get("action")
    call = thread.call(item, _turn_of(item), "web_search", action if type(action) is dict else {})
    if call is not None:
        _settle_by_status(call, item.get("status"))


def _image_generation_call(thread: CodexThread, item: Payload) -> None:
    call = thread.call(item, _turn_of(item), "image_generation", {"prompt": item.get("revised_prompt")})
    if call is not None:
        _settle_by_status(call, item.get("status"))
        image = item.get("result")
        call.whole = image_of(f"data:image/png;base64,{image}") if type(image) is str else None


def _settle_by_status(call: OpenCall, status: object) -> None:
    """Settle a call that the provider ran itself: no output follows."""
    if status == "completed":
        call.settled = End("succeeded")
    elif status == "failed":
        call.settled = End("failed")


def _output(thread: CodexThread, item: Payload) -> None:
    thread.output(item)


def _turn_of(item: Payload) -> str | None:
    metadata = item.get("internal_chat_message_metadata_passthrough")
    return word(metadata.get("turn_id")) if type(metadata) is dict else None


# Events: what a person is shown


def _event(thread: CodexThread, event: Payload) -> None:
    """An event is what a person is shown. It often repeats an item."""
    kind = event.get("type")
    handle = _EVENTS.get(kind) if type(kind) is str else None
    if handle is not None:
        handle(thread, event)
    elif type(kind) is not str or kind not in NOTHING_TO_KEEP_EVENTS:
        thread.counts.pass_over(f"event_msg {kind}" if type(kind) is str else "event_msg without a type")


def _user_message(thread: CodexThread, event: Payload) -> None:
    if event.get("kind") in ("environment_context", "user_instructions"):
        return
    images = [url for name in ("images", "local_images") for url in _words(event.get(name))]
    text = word(event.get("message"))
    if text is not None or images:
        thread.prompt([text] if text is not None else [], images, None, None, by_item=False)


def _agent_message(thread: CodexThread, event: Payload) -> None:
    """Add the model's text, unless it is only the notice after a compaction."""
    text = word(event.get("message"))
    last = thread.turn.pieces[-1] if thread.turn is not None and thread.turn.pieces else None
    if text is not None and not (text == COMPACTED_NOTICE and isinstance(last, Compaction)):
        _say(thread, "text", [text], None)


def _agent_reasoning(thread: CodexThread, event: Payload) -> None:
    text = word(event.get("text"))
    _say(thread, "reasoning", [text] if text is not None else [], None)


def _item_completed(thread: CodexThread, event: Payload) -> None:
    """From 0.118 on, an item of a turn tells its end: texts, reasoning, and how calls ended."""
    item = event.get("item")
    kind = item.get("type") if type(item) is dict else None
    if type(item) is not dict or type(kind) is not str:
        thread.counts.pass_over("event_msg item_completed without an item")
        return
    thread.id = thread.id or word(event.get("thread_id"))
    turn = word(event.get("turn_id"))
    if kind == "UserMessage":
        content = item.get("content")
        texts, images = said_by_user(content if type(content) is list else [], None)
        if texts or images:
            thread.prompt(texts, images, word(item.get("id")), turn, by_item=False)
    elif kind == "AgentMessage":
        _say(thread, "text", texts_of(item.get("content")), turn)
    elif kind == "Reasoning":
        _say(thread, "reasoning", _words(item.get("summary_text")) or _words(item.get("raw_content")), turn)
    elif kind in ENDS_OF_CALLS:
        thread.end_call(item, word(item.get("id")), event, f"event_msg item_completed {kind}")
    elif kind not in NOTHING_TO_KEEP_TURN_ITEMS:
        thread.counts.pass_over(f"event_msg item_completed {kind}")


def _say(thread: CodexThread, kind: Literal["text", "reasoning"], texts: list[str], turn: str | None) -> None:
    """Add the model's texts to its step. The step recognises those that an item told already."""
    step = thread.model_speaks(turn) if texts else None
    if step is not None:
        for text in texts:
            step.say(kind, text, by_item=False)


def _end_event(thread: CodexThread, event: Payload) -> None:
    thread.end_call(event, word(event.get("call_id")), event, f"event_msg {event.get('type')}")


def _token_count(thread: CodexThread, event: Payload) -> None:
    thread.count_totals(event.get("info"))


def _error(thread: CodexThread, event: Payload) -> None:
    if thread.turn is not None:
        thread.turn.fail(_failure(event), thread.line)
        thread.turn.last_stamp = thread.stamp


def _thread_name_updated(thread: CodexThread, event: Payload) -> None:
    title = word(event.get("thread_name"))
    if title is not None:
        thread.begin()
        thread.pieces.append(Title(title, Origin(thread.line)))


def _thread_rolled_back(thread: CodexThread, event: Payload) -> None:
    turns = event.get("num_turns")
    if type(turns) is int and turns > 0:
        thread.roll_back(turns)
    else:
        thread.counts.pass_over("event_msg thread_rolled_back without a number")


def _task_started(thread: CodexThread, event: Payload) -> None:
    """A turn begins. Some versions write the record twice."""
    thread.has_tasks = True
    named = word(event.get("turn_id"))
    if named is not None and thread.has_begun(named):
        thread.counts.pass_over("event_msg task_started, the second time")
        return
    thread.close_without_record("no end before the next turn", is_open=False)
    thread.open_turn(named, by_task=True, inferred=None)


def _task_complete(thread: CodexThread, event: Payload) -> None:
    """A turn ends. Without an answer it has failed, whatever the record says."""
    turn = _ending(thread, event)
    if turn is None:
        return
    error = event.get("error")
    if type(error) is dict:
        turn.fail(_failure(error), thread.line)
    if turn.error is not None:
        thread.close(turn, "failed", turn.error.message, None)
        return
    step = turn.last_step()
    is_answered = event.get("last_agent_message") is not None or (step is not None and step.ends_turn())
    if is_answered or not turn.inputs:
        thread.close(turn, "completed", None, None)
    else:
        thread.close(turn, "failed", None, "failed: it has no answer")


def _turn_aborted(thread: CodexThread, event: Payload) -> None:
    turn = _ending(thread, event)
    if turn is not None:
        turn.error = None
        thread.close(turn, "aborted", word(event.get("reason")), None)


def _ending(thread: CodexThread, event: Payload) -> OpenTurn | None:
    """Return the turn that the record ends, or None where it speaks of another one."""
    named = word(event.get("turn_id"))
    turn = thread.turn
    if turn is None or (named is not None and turn.id is not None and named != turn.id):
        thread.counts.pass_over(f"event_msg {event.get('type')} without its turn")
        return None
    return turn


def _failure(error: Payload) -> Failure:
    """Return the error of a record, with its class where it has one."""
    kind = error.get("codex_error_info")
    if type(kind) is dict:
        kind = next(iter(kind), None)
    message = error.get("message")
    return Failure(kind=word(kind) or "unknown", message=message if type(message) is str else "")


def _words(values: object) -> list[str]:
    return [value for value in values if type(value) is str and value] if type(values) is list else []


_Handle: TypeAlias = Callable[[CodexThread, Payload], None]
_RECORDS: dict[str, _Handle] = {
    "session_meta": CodexThread.take_meta,
    "turn_context": _turn_context,
    "response_item": _response_item,
    "event_msg": _event,
    "compacted": _compacted,
    "world_state": _nothing,
    "token_usage_record": _token_usage_record,
}
_ITEMS: dict[str, _Handle] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_tool_call,
    "local_shell_call": _local_shell_call,
    "tool_search_call": _tool_search_call,
    "web_search_call": _web_search_call,
    "image_generation_call": _image_generation_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "local_shell_call_output": _output,
    "tool_search_output": _output,
    **dict.fromkeys(NOTHING_TO_KEEP_ITEMS, _nothing),
}
_EVENTS: dict[str, _Handle] = {
    "user_message": _user_message,
    "agent_message": _agent_message,
    "agent_reasoning": _agent_reasoning,
    "agent_reasoning_raw_content": _agent_reasoning,
    "item_completed": _item_completed,
    "exec_command_end": _end_event,
    "patch_apply_end": _end_event,
    "mcp_tool_call_end": _end_event,
    "token_count": _token_count,
    "error": _error,
    "thread_name_updated": _thread_name_updated,
    "thread_rolled_back": _thread_rolled_back,
    "task_started": _task_started,
    "turn_started": _task_started,
    "task_complete": _task_complete,
    "turn_complete": _task_complete,
    "turn_aborted": _turn_aborted,
}
