"""The artifacts that a command names: whether they are there, and how large they are."""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

import structlog
from pydantic import JsonValue

from schemas.config import Config
from schemas.ids import TenantId
from services.chassis.artifacts.store import ArtifactInfo, ArtifactStore, ArtifactsUnavailableError
from services.ingest.http.problems import ARTIFACT_MISSING, ARTIFACTS_UNAVAILABLE, Problem, ProblemError
from services.ingest.http.requests import Content

TOUCHED_AT_ONCE: Final = 8
"""Artifacts of one request that are asked for at the same time."""
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)

logger = structlog.get_logger()


class NamedArtifacts:
    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    async def sizes(
        self,
        tenant: TenantId,
        content: Content | None = None,
        config: Config | Mapping[str, JsonValue] | None = None,
    ) -> dict[str, int]:
        """Sizes in bytes, by sha256, of the artifacts that an input names and that exist. The skills of a configuration
        have to exist.

        The artifacts are touched, so that none is collected before the event that names it is in the log. Raises
        ProblemError: artifact-missing, artifacts-unavailable.
        """
        skills = skills_of(config)
        named = skills | content.named() if content is not None else skills
        if not named:
            return {}
        places = asyncio.Semaphore(TOUCHED_AT_ONCE)

        async def touched(sha256: str) -> ArtifactInfo | ArtifactsUnavailableError | None:
            async with places:
                try:
                    return await self._store.touch(tenant, sha256)
                except ArtifactsUnavailableError as error:
                    # A value, since an exception in a group would arrive as a group of exceptions.
                    return error

        async with asyncio.TaskGroup() as group:
            tasks = {sha256: group.create_task(touched(sha256)) for sha256 in sorted(named)}
        sizes = {}
        for sha256, task in tasks.items():
            found = task.result()
            if isinstance(found, ArtifactsUnavailableError):
                raise ProblemError(store_unavailable(found)) from found
            if found is not None:
                sizes[sha256] = found.size
        missing = sorted(skills - sizes.keys())
        if missing:
            detail = f"A skill of the configuration names an artifact that does not exist: {', '.join(missing)}."
            raise ProblemError(Problem(ARTIFACT_MISSING, detail, {"missing": list(missing)}))
        return sizes


def skills_of(config: Config | Mapping[str, JsonValue] | None) -> frozenset[str]:
    """The sha256 of each artifact that the skills of a configuration, or of a patch of one, name.

    Parts of a patch that have the wrong shape are passed over; they are refused where the patch is merged.
    """
    if isinstance(config, Config):
        return frozenset([skill.sha256 for skill in config.skills])
    skills = config.get("skills") if config is not None else None
    named = [skill.get("sha256") for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    return frozenset([sha256 for sha256 in named if isinstance(sha256, str) and _HASH.fullmatch(sha256) is not None])


def store_unavailable(error: ArtifactsUnavailableError) -> Problem:
    """Log what the store said, which names its address, and return a problem without it: that is for operators."""
    logger.warning("artifacts_unavailable", error=str(error))
    return Problem(ARTIFACTS_UNAVAILABLE, "The artifact store cannot be asked now.")
