"""What passes on `thread-effects`: what each record of `thread-events` came to, with what can be counted of it.

For whoever does not want to fold. A record per source record that has a seq, in the order of the source, at least
once: its position in the source, (partition, offset), is what to dedupe by.
"""

from typing import Annotated, Final, NamedTuple

import pydantic
import pydantic_core
from pydantic import Field

from schemas.canonical import data_hash
from schemas.config import Frozen
from schemas.envelope import CONTENT_TYPE, SPECVERSION, Headers, format_time
from schemas.events import TYPE_PREFIX, Count, Positive
from schemas.ids import CALL_PATTERN
from schemas.thread import Effect

EFFECT_TYPE: Final = f"{TYPE_PREFIX}effect.v1"
NAME_CHARACTERS_MAX: Final = 200
"""Limit on a reason, a tool or a model; longer ones are cut."""

Name = Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)]


class Facts(Frozen):
    """What can be counted of a record: small, absent where there is nothing to say."""

    turn: Positive | None = Field(None, description="The turn that the record is about.")
    step: Positive | None = Field(None, description="The step that it is about.")
    call: str | None = Field(None, pattern=CALL_PATTERN, description="The tool call that it is about.")
    inputs: Count | None = Field(None, description="1 for an input that was accepted.")
    outcome: Name | None = Field(
        None,
        description="How the turn ended, in the record that ends it: completed, aborted, failed or interrupted. How "
        "the"
        "call was settled, in the record that settles it: succeeded, failed, timed_out, cancelled, denied, expired, "
        "not_started or abandoned.",
    )
    reason: Name | None = Field(None, description="Why the turn ended so, where its end says so.")
    decision: Name | None = Field(
        None,
        description="What was decided about a call: approved, edited, denied or expired; about an unknown call: "
        "succeeded, failed, again or abandoned.",
    )
    error_kind: Name | None = Field(None, description="Kind of the failure, where a model call failed.")
    tool: Name | None = Field(None, description="Name of the call's tool.")
    model: Name | None = Field(
        None, description="Model of the step that started, or of the configuration that the tokens belong to."
    )
    turn_ms: Count | None = Field(
        None,
        description="Time from the turn's start to its end, in the record that ends it. Never negative, even if the "
        "records come from two clocks.",
    )
    waited_ms: Count | None = Field(
        None,
        description="The part of turn_ms in which nothing could go on without a person, or only child threads worked.",
    )
    step_ms: Count | None = Field(None, description="Time from the start of the step's latest attempt to its answer.")
    tool_ms: Count | None = Field(
        None, description="How long the tool of a finished call ran, as its executor measured it."
    )
    input_tokens: Count | None = Field(
        None,
        description="Input tokens of a response, as its provider counted them. A response that lost its race "
        "counts, too:"
        "it was paid for.",
    )
    output_tokens: Count | None = Field(None, description="Output tokens, counted in the same way.")
    cached_tokens: Count | None = Field(
        None, description="The part of input_tokens that came from the provider's cache."
    )
    reasoning_tokens: Count | None = Field(None, description="The part of output_tokens that nobody sees.")
    waiting: int | None = Field(
        None,
        description="Change in the number of the thread's calls that wait for a person's approval. The sum over a "
        "thread"
        "is how many wait.",
    )
    unknown: int | None = Field(
        None,
        description="Change in the number of the thread's calls whose outcome is unknown. The sum is how many there "
        "are.",
    )


class ThreadEffect(Frozen):
    """The value of a record of `thread-effects`. It may get more fields: readers ignore those that they do not know."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    tenant: str
    thread: str
    seq: Positive = Field(description="Number of the source record within its thread, from 1 without gaps.")
    type: str = Field(
        description="Kind of the event, such as tool_call.finished; the whole CloudEvents type if it is unknown."
    )
    effect: Effect = Field(description="applied, duplicate, superseded, rejected or ignored.")
    reason: str | None = Field(None, description="Why the record had no effect.")
    partition: Count = Field(
        description="Partition of the source record. Partition and offset identify an effect: deduplicate by them."
    )
    offset: Count = Field(description="Offset of the source record. Offsets ascend, with gaps.")
    id: str = Field(description="Event id of the source record.")
    time_ms: int = Field(description="Event time, as the source record states it, in milliseconds since 1970.")
    facts: Facts | None = Field(None, description="What can be counted of it.")


class EffectRow(NamedTuple):
    """The columns of `events` from which an effect is made."""

    tenant: str
    thread: str
    seq: int
    partition: int
    offset: int
    id: str
    type: str
    time_ms: int
    effect: str
    reason: str | None
    facts: bytes | None
    """JSON as it was made, or as the database gives it back."""


class EncodedEffect(NamedTuple):
    """An effect as a record to append."""

    key: bytes
    value: bytes
    headers: Headers


def encode_effect(row: EffectRow) -> EncodedEffect:
    """Return the record for a row: the same bytes for the same source record, whoever publishes it again. The keys of
    the value are sorted. The CloudEvent's id is the source's position, so consumers recognise copies by source and id.
    """
    tenant, thread, seq, partition, offset, event_id, kind, time_ms, effect, reason, facts = row
    said: dict[str, object] = {"effect": effect}
    if facts is not None:
        counted = pydantic_core.from_json(facts)
        said["facts"] = {name: counted[name] for name in sorted(counted)}
    said |= {"id": event_id, "offset": offset, "partition": partition}
    if reason is not None:
        said["reason"] = reason
    said |= {"seq": seq, "tenant": tenant, "thread": thread, "time_ms": time_ms, "type": kind}
    value = pydantic_core.to_json(said)
    headers = (
        ("ce_specversion", SPECVERSION),
        ("ce_id", b"%d-%d" % (partition, offset)),
        ("ce_source", b"projector"),
        ("ce_type", _TYPE),
        ("ce_time", format_time(time_ms).encode()),
        ("content-type", CONTENT_TYPE),
        ("ce_actor", b"service:projector"),
        ("ce_datahash", data_hash(value).encode()),
        ("ce_cause", event_id.encode()),
    )
    return EncodedEffect(f"{tenant}/{thread}".encode(), value, headers)


def decode_effect(value: bytes | None) -> ThreadEffect | None:
    """Return the effect, or None for a value that is not one. A consumer skips such a record."""
    if value is None:
        return None
    try:
        return ThreadEffect.model_validate_json(value)
    except pydantic.ValidationError:
        return None


_TYPE: Final = EFFECT_TYPE.encode()
