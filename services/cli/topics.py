"""`threadlog topics apply` and `check` create topics and compare them with their declarations."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

import typer

from schemas.errors import ThreadlogError
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from services.chassis.kafka.topic_admin import Applied, TopicDifference
    from services.chassis.settings import Settings

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Create and check the topics on the broker of THREADLOG_KAFKA_BOOTSTRAP_SERVERS."
)


@app.command("apply")
def apply_command() -> None:
    """Create the topics that are missing. Existing topics are compared and never changed."""
    from services.chassis.settings import Settings

    applied = _run(apply_topics(Settings()))
    for name in applied.created:
        print(f"created {name}")
    _show(applied.differences)


@app.command("check")
def check_command() -> None:
    """Compare the topics with their declarations and change nothing. Exits with 1 if one differs."""
    from services.chassis.settings import Settings

    _show(_run(check_topics(Settings())))


async def apply_topics(settings: "Settings") -> "Applied":
    """Create the missing topics and return what was created and what differs."""
    from services.chassis.kafka.topic_admin import apply, topic_specs
    from services.chassis.kafka.topics import kafka_topics

    specs = topic_specs(TOPICS, settings.topic_partitions, settings.topic_replication_factor)
    async with kafka_topics(settings) as broker:
        return await apply(broker, specs)


async def check_topics(settings: "Settings") -> tuple["TopicDifference", ...]:
    """Return what differs from the declarations in `schemas.topics`."""
    from services.chassis.kafka.topic_admin import check, topic_specs
    from services.chassis.kafka.topics import kafka_topics

    specs = topic_specs(TOPICS, settings.topic_partitions, settings.topic_replication_factor)
    async with kafka_topics(settings) as broker:
        return await check(broker, specs)


def _run(work: Coroutine[None, None, T]) -> T:
    """Run the work. Every expected error becomes one line and exit status 1."""
    try:
        return asyncio.run(work)
    except ThreadlogError as error:
        sys.exit(f"threadlog: {error}")


def _show(differences: tuple["TopicDifference", ...]) -> None:
    """Print the differences. Exits with 1 if there is one: a script can stop there."""
    for difference in differences:
        print(difference)
    if differences:
        sys.exit(1)
    print("all topics are as declared")
