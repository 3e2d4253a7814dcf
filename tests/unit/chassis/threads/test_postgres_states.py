"""Whatever a pool raises while its server dies is said as the port says it."""

from typing import Any

import asyncpg
import pytest

from schemas.topics import THREAD_EVENTS
from services.chassis.threads.postgres_states import PostgresStates
from services.chassis.threads.states import StatesUnavailableError


class BrokenPool:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def fetch(self, *_: object) -> Any:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.InterfaceError("pool is closed"),
        # Of a connection that the server ended just when the pool handed it out.
        asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_database_that_dies_is_away(error: Exception) -> None:
    states = PostgresStates(BrokenPool(error))  # type: ignore[arg-type]
    with pytest.raises(StatesUnavailableError):
        await states.load_active(THREAD_EVENTS.name, 0)
    with pytest.raises(StatesUnavailableError):
        await states.load_keys(THREAD_EVENTS.name, 0, 10)
