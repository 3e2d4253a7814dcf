"""Who asks, and what they may do.

An API key reads `tl_<id>_<secret>`. The database keeps the secret's sha256 alone; this process remembers, for a while,
the sha256 of whole keys that it has looked up, so that a request with a known key costs one hash.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, NamedTuple, Protocol, get_args

from schemas.ids import TenantId, is_name
from services.chassis.clock import Clock
from services.ingest.http.problems import FORBIDDEN, FOREIGN_HOST, UNAUTHENTICATED, Problem, ProblemError
from services.ingest.lru_cache import LruCache
from services.ingest.settings import is_loopback

Scope = Literal["threads:read", "threads:write", "tools:decide", "artifacts:read", "artifacts:write", "ops"]
SCOPES: frozenset[str] = frozenset(get_args(Scope))

SUBJECT = re.compile(r"[!-~]{1,128}")
"""Subjects are shown in records' headers: visible ASCII without spaces, such as `alice@example.com`."""
KEY = re.compile(r"tl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")

STALE_SECONDS: Final = 600.0
"""How long a known key is still believed while the database is away: callers outlive a failover of Postgres."""
KEYS_MAX: Final = 10_000
"""Keys that this process remembers, valid ones and others. One more costs a query of the database."""

TENANT_HEADER = "x-threadlog-tenant"
SUBJECT_HEADER = "x-threadlog-subject"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    tenant: TenantId
    subject: str
    scopes: frozenset[str]

    @property
    def actor(self) -> str:
        """The caller as records name it."""
        return f"user:{self.subject}"


class StoredKey(NamedTuple):
    """An API key as the database has it."""

    tenant: str
    subject: str
    scopes: tuple[str, ...]
    secret_sha256: bytes
    revoked: bool


class KeyStore(Protocol):
    """Where keys are looked up by the id that is part of them."""

    async def find(self, key_id: str) -> StoredKey | None:
        """Return the key, or None if there is none. Raises ProblemError (views-unavailable) without a database."""


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def principal(self, headers: Mapping[str, str]) -> Principal:
        """Return the caller. Raises ProblemError: unauthenticated, foreign-host, or views-unavailable."""


async def authorize(authenticator: Authenticator, headers: Mapping[str, str], *scopes: Scope) -> Principal:
    """Return the caller if they have all scopes. Raises ProblemError otherwise, with the first that is missing."""
    principal = await authenticator.principal(headers)
    for scope in scopes:
        if scope not in principal.scopes:
            raise ProblemError(Problem(FORBIDDEN, f"The API key needs the scope {scope}."))
    return principal


class DevAuthenticator:
    """Believes two headers, for development on one machine.

    It answers only requests that address this machine by a loopback name. Otherwise a web page could reach it through a
    name of its own that resolves to 127.0.0.1, and act for every tenant.
    """

    async def principal(self, headers: Mapping[str, str]) -> Principal:
        host = headers.get("host", "")
        if not is_loopback(_without_port(host)):
            raise ProblemError(Problem(FOREIGN_HOST, f"The request addresses {host[:100]!r} instead of localhost."))
        tenant, subject = headers.get(TENANT_HEADER, "dev"), headers.get(SUBJECT_HEADER, "dev")
        if not is_name(tenant) or SUBJECT.fullmatch(subject) is None:
            raise ProblemError(
                Problem(UNAUTHENTICATED, f"The header {TENANT_HEADER} or {SUBJECT_HEADER} is not a valid name.")
            )
        return Principal(TenantId(tenant), subject, SCOPES)


@dataclass(slots=True)
class _Remembered:
    principal: Principal | None
    """The caller; None if the key is not valid. That is kept, too, so that wrong keys do not cost a query each."""
    look_again_ms: int
    """When the key is looked up again, which is when a revoked key stops working."""
    stale_ms: int
    """When a key that was valid stops being believed if the database is away."""


class KeyAuthenticator:
    """Believes API keys that are in the database and not revoked.

    A revoked key works until it is looked up again. While the database is away, keys that were valid go on working for
    a while, so that writes, which need no database, do not stop with it.
    """

    def __init__(
        self,
        keys: KeyStore,
        clock: Clock,
        *,
        cache_seconds: float,
        stale_seconds: float = STALE_SECONDS,
        cache_max: int = KEYS_MAX,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._cache_ms = int(cache_seconds * 1000)
        self._stale_ms = int(stale_seconds * 1000)
        self._remembered: LruCache[bytes, _Remembered] = LruCache(cache_max)

    async def principal(self, headers: Mapping[str, str]) -> Principal:
        authorization = headers.get("authorization", "")
        digest = sha256(authorization.encode()).digest()
        remembered = self._remembered.get(digest)
        now_ms = self._clock.now_ms()
        if remembered is None or now_ms >= remembered.look_again_ms:
            remembered = await self._look_up(authorization, digest, remembered, now_ms)
        if remembered.principal is None:
            raise ProblemError(_no_key(authorization))
        return remembered.principal

    async def _look_up(self, authorization: str, digest: bytes, before: _Remembered | None, now_ms: int) -> _Remembered:
        match = _key_of(authorization)
        if match is None:
            raise ProblemError(_no_key(authorization))
        if before is not None:
            # Set before the query, so that requests that come meanwhile do not send the same query.
            before.look_again_ms = now_ms + self._cache_ms
        try:
            stored = await self._keys.find(match[1])
        except ProblemError:
            if before is None or before.principal is None or now_ms >= before.stale_ms:
                if before is not None:
                    # Nothing was found out, so the next request asks again.
                    before.look_again_ms = now_ms
                raise
            return before
        found = _Remembered(
            principal_of(stored, match[2]), now_ms + self._cache_ms, now_ms + self._cache_ms + self._stale_ms
        )
        self._remembered.put(digest, found)
        return found


def principal_of(stored: StoredKey | None, secret: str) -> Principal | None:
    """Return the caller that a stored key stands for; None if it is missing, revoked, or has another secret."""
    if stored is None or stored.revoked:
        return None
    # In constant time: how long it takes must not tell how much of a secret is right.
    if not hmac.compare_digest(stored.secret_sha256, sha256(secret.encode()).digest()):
        return None
    return Principal(TenantId(stored.tenant), stored.subject, frozenset(stored.scopes))


def _key_of(authorization: str) -> re.Match[str] | None:
    scheme, _, key = authorization.partition(" ")
    return KEY.fullmatch(key) if scheme.lower() == "bearer" else None


def _no_key(authorization: str) -> Problem:
    if not authorization:
        return Problem(UNAUTHENTICATED, "The header Authorization is missing.")
    return Problem(UNAUTHENTICATED, "The header Authorization does not contain a valid API key.")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host
