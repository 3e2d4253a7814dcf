"""API keys in the database: create, find and revoke them.

The database has only the sha256 of a key's secret. Whoever reads the table, or a backup of it, cannot call the API with
it.
"""

import secrets
from collections.abc import Collection, Mapping
from hashlib import sha256

import asyncpg

from schemas.errors import ThreadlogError
from schemas.ids import is_name
from services.ingest.database import Database
from services.ingest.http.auth import SCOPES, SUBJECT, StoredKey

_ID_BYTES = 8
"""Random bytes of a key's id. The id is public and only has to be unique."""
_SECRET_BYTES = 32
"""Random bytes of a key's secret: too many to guess, so a fast hash without salt suffices."""


class KeyRequestError(ThreadlogError):
    """The key cannot be created like this; the text says what to change."""


class PostgresKeys:
    """Implements `auth.KeyStore`."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    async def find(self, key_id: str) -> StoredKey | None:
        """Return the stored key, revoked or not; None if there is none with this id. Raises ProblemError
        (views-unavailable).
        """
        rows = await self._database.fetch_as_service(self._sql["api_key"], key_id)
        if not rows:
            return None
        row = rows[0]
        return StoredKey(row["tenant"], row["subject"], tuple(row["scopes"]), row["secret_sha256"], row["revoked"])


async def create_key(
    connection: asyncpg.Connection | asyncpg.Pool,
    sql: Mapping[str, str],
    *,
    tenant: str,
    subject: str,
    scopes: Collection[str],
) -> str:
    """Create a key and return it. It is shown once and can never be read again. Raises KeyRequestError."""
    if not is_name(tenant):
        raise KeyRequestError(f"{tenant!r} cannot name a tenant: 1 to 64 letters, digits, '.', '_' and '-'.")
    if SUBJECT.fullmatch(subject) is None:
        raise KeyRequestError(f"{subject!r} cannot name a subject: 1 to 128 visible ASCII characters.")
    unknown = set(scopes) - SCOPES
    if unknown or not scopes:
        raise KeyRequestError(
            f"There is no scope {', '.join(sorted(unknown)) or '(none)'}; take {', '.join(sorted(SCOPES))}."
        )
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    digest = sha256(secret.encode()).digest()
    await connection.execute(sql["insert_api_key"], key_id, tenant, subject, sorted(set(scopes)), digest)
    return f"tl_{key_id}_{secret}"


async def revoke_key(connection: asyncpg.Connection | asyncpg.Pool, sql: Mapping[str, str], key_id: str) -> bool:
    """Revoke the key. Returns whether it was valid until now. Processes that remember it refuse it after their cache
    time.
    """
    return await connection.fetchval(sql["revoke_api_key"], key_id) is not None
