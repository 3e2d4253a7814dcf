"""What passes on `thread-effects`: what each record of `thread-events` came to, with what can be counted of it.

For whoever does not want to fold. A record per source record that has a seq, in the order of the source, at least
once: its position in the source, (partition, offset), is what to dedupe by.
"""

from typing import Annotated, Final

from pydantic import Field

from schemas.config import Frozen
from schemas.events import TYPE_PREFIX, Count, Positive
from schemas.ids import CALL_PATTERN

EFFECT_TYPE: Final = f"{TYPE_PREFIX}effect.v1"
NAME_CHARACTERS_MAX: Final = 200
"""Of a reason, a tool, a model: longer ones are cut."""

Name = Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)]


class Facts(Frozen):
    """What can be counted of a record: small, absent where there is nothing to say."""

    turn: Positive | None = Field(None, description="The turn that the record is about.")
    step: Positive | None = Field(None, description="The step that it is about.")
    call: str | None = Field(None, pattern=CALL_PATTERN, description="The tool call that it is about.")
    inputs: Count | None = Field(None, description="1 for an input that was accepted.")
    outcome: Name | None = Field(
        None,
        description="How a turn ended, in the record that ends it: completed, aborted, failed or interrupted. How a "
        "call was settled, in the record about it that does: succeeded, failed, timed_out, cancelled, denied, expired, "
        "not_started or abandoned.",
    )
    reason: Name | None = Field(None, description="Why the turn ended so, where its end says so.")
    decision: Name | None = Field(
        None,
        description="What was decided of a call: approved, edited, denied or expired; of an unknown one succeeded, "
        "failed, again or abandoned.",
    )
    error_kind: Name | None = Field(None, description="Of a model call that failed.")
    tool: Name | None = Field(None, description="Name of the call's tool.")
    model: Name | None = Field(
        None, description="Of the step that started, or of the configuration that the tokens are of."
    )
    turn_ms: Count | None = Field(
        None,
        description="Of a record that ends a turn: from its start to its end. With records of two clocks at least 0.",
    )
    waited_ms: Count | None = Field(
        None, description="The part of turn_ms in which nothing could go on without a person."
    )
    step_ms: Count | None = Field(
        None, description="Of a finished step: from the start of its latest attempt to the answer."
    )
    tool_ms: Count | None = Field(
        None, description="Of a finished call: how long the tool ran, as its executor measured."
    )
    input_tokens: Count | None = Field(
        None,
        description="Of a response, as its provider counted them, also of one that lost its race: it was paid for.",
    )
    output_tokens: Count | None = Field(None, description="The same.")
    cached_tokens: Count | None = Field(
        None, description="The part of input_tokens that came from the provider's cache."
    )
    reasoning_tokens: Count | None = Field(None, description="The part of output_tokens that nobody sees.")
    waiting: int | None = Field(
        None,
        description="By how many more, or fewer, of the thread's calls wait for a person's approval after the record. "
        "The sum over a thread is how many wait.",
    )
    unknown: int | None = Field(
        None,
        description="The same of calls of which is not known whether they ran. The sum is how many there are.",
    )
