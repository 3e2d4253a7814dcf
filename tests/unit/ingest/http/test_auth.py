from hashlib import sha256

import pytest

from services.ingest.http.auth import (
    SCOPES,
    DevAuthenticator,
    KeyAuthenticator,
    Principal,
    StoredKey,
    authorize,
    principal_of,
)
from services.ingest.http.problems import (
    FORBIDDEN,
    FOREIGN_HOST,
    UNAUTHENTICATED,
    VIEWS_UNAVAILABLE,
    Problem,
    ProblemError,
    ProblemType,
)
from tests.unit.ingest.world import StoppedClock

ID = "0123456789abcdef"
SECRET = "s" * 43
KEY = f"tl_{ID}_{SECRET}"
STORED = StoredKey("acme", "ann", ("threads:read",), sha256(SECRET.encode()).digest(), revoked=False)


class Keys:
    def __init__(self) -> None:
        self.stored: dict[str, StoredKey] = {ID: STORED}
        self.is_away = False
        self.asked = 0

    async def find(self, key_id: str) -> StoredKey | None:
        self.asked += 1
        if self.is_away:
            raise ProblemError(Problem(VIEWS_UNAVAILABLE, "away"))
        return self.stored.get(key_id)


class Setup:
    def __init__(self) -> None:
        self.keys = Keys()
        self.clock = StoppedClock()
        self.authenticator = KeyAuthenticator(self.keys, self.clock, cache_seconds=30, stale_seconds=600, cache_max=100)

    async def principal(self, authorization: str = f"Bearer {KEY}") -> Principal:
        return await self.authenticator.principal({"authorization": authorization})

    async def problem(self, authorization: str = f"Bearer {KEY}") -> ProblemType:
        with pytest.raises(ProblemError) as raised:
            await self.principal(authorization)
        return raised.value.problem.type


async def test_a_key_names_tenant_subject_and_scopes() -> None:
    assert await Setup().principal() == Principal("acme", "ann", frozenset({"threads:read"}))  # type: ignore[arg-type]
    assert (await Setup().principal(f"bearer {KEY}")).actor == "user:ann"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer tl_x_y",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY} ",
        f"Bearer tl_{ID}_{'x' * 43}",
        f"Bearer tl_{'f' * 16}_{SECRET}",
        f"Bearer tl_{ID}_{'é' * 43}",
    ],
)
async def test_anything_else_is_no_key(authorization: str) -> None:
    assert await Setup().problem(authorization) is UNAUTHENTICATED


async def test_a_known_key_is_not_looked_up_again_for_a_while() -> None:
    setup = Setup()
    for _ in range(3):
        await setup.principal()
    assert setup.keys.asked == 1


async def test_a_wrong_key_is_remembered_too() -> None:
    setup = Setup()
    for _ in range(3):
        assert await setup.problem(f"Bearer tl_{'f' * 16}_{SECRET}") is UNAUTHENTICATED
    assert setup.keys.asked == 1


async def test_a_revoked_key_is_refused_after_the_cache_time() -> None:
    setup = Setup()
    await setup.principal()
    setup.keys.stored[ID] = STORED._replace(revoked=True)
    await setup.principal()
    setup.clock.ms += 30_000
    assert await setup.problem() is UNAUTHENTICATED


async def test_a_known_key_outlives_the_database_for_a_while() -> None:
    setup = Setup()
    await setup.principal()
    setup.keys.is_away = True
    setup.clock.ms += 30_000
    assert (await setup.principal()).tenant == "acme"
    setup.clock.ms += 600_000
    assert await setup.problem() is VIEWS_UNAVAILABLE
    setup.keys.is_away = False
    assert (await setup.principal()).tenant == "acme"


async def test_an_unknown_key_does_not() -> None:
    setup = Setup()
    setup.keys.is_away = True
    assert await setup.problem() is VIEWS_UNAVAILABLE


def test_a_stored_key_is_compared_by_its_hash() -> None:
    assert principal_of(STORED, SECRET) is not None
    assert principal_of(STORED, "x" * 43) is None
    assert principal_of(STORED._replace(revoked=True), SECRET) is None
    assert principal_of(None, SECRET) is None


async def test_a_scope_is_needed() -> None:
    authenticator = Setup().authenticator
    headers = {"authorization": f"Bearer {KEY}"}
    assert (await authorize(authenticator, headers, "threads:read")).subject == "ann"
    with pytest.raises(ProblemError) as raised:
        await authorize(authenticator, headers, "threads:write")
    assert raised.value.problem.type is FORBIDDEN


# Development mode


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "[::1]"])
async def test_dev_mode_believes_its_own_machine(host: str) -> None:
    headers = {"host": host, "x-threadlog-tenant": "acme", "x-threadlog-subject": "ann"}
    assert await DevAuthenticator().principal(headers) == Principal("acme", "ann", SCOPES)  # type: ignore[arg-type]
    assert (await DevAuthenticator().principal({"host": host})).actor == "user:dev"


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1"])
async def test_dev_mode_answers_nobody_who_calls_it_by_another_name(host: str) -> None:
    with pytest.raises(ProblemError) as raised:
        await DevAuthenticator().principal({"host": host})
    assert raised.value.problem.type is FOREIGN_HOST


@pytest.mark.parametrize(
    "headers", [{"x-threadlog-tenant": "a/b"}, {"x-threadlog-tenant": ""}, {"x-threadlog-subject": "a b"}]
)
async def test_dev_mode_takes_names_only(headers: dict[str, str]) -> None:
    with pytest.raises(ProblemError) as raised:
        await DevAuthenticator().principal({"host": "localhost"} | headers)
    assert raised.value.problem.type is UNAUTHENTICATED
