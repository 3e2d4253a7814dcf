"""The tool by which a model reads parts of artifacts: whole outputs of which it saw head and tail, and uploads."""

import asyncio
from typing import Final

from pydantic import Field

from schemas.tools import ToolSpec
from services.chassis.artifacts.store import ArtifactError, ArtifactMissingError, ArtifactStore, collected
from services.tool_executor.builtin.tool import Arguments, BuiltinTool, ToolFailedError, schema_of
from services.tool_executor.output import structured_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from services.tool_executor.workspace.sandbox import Room, Sandbox

BYTES_DEFAULT: Final = 16_384
BYTES_MAX: Final = 30_720
"""So much fits into a result together with the position that it names."""


class ReadArtifactArguments(Arguments):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Hash of the artifact, as a result or input names it.")
    offset: int = Field(default=0, ge=0, description="First byte to read, from 0.")
    bytes: int = Field(default=BYTES_DEFAULT, ge=1, le=BYTES_MAX, description="How many bytes to read.")


class ReadArtifactTool(BuiltinTool[ReadArtifactArguments]):
    """Reads artifacts of the thread's tenant.

    It does not check whether this thread was told the hash: a hash is known only to those who have seen it in the
    tenant, or who have the bytes.
    """

    arguments = ReadArtifactArguments
    spec = ToolSpec(
        name="read_artifact",
        description="Read a part of an artifact: a whole output of which a result shows head and tail, or an upload.",
        input_schema=schema_of(ReadArtifactArguments),
        effect="pure",
        parallel=True,
        timeout_seconds=60,
    )

    def __init__(self, sandbox: Sandbox, store: ArtifactStore) -> None:
        super().__init__(sandbox)
        self._store = store

    async def act(
        self,
        args: ReadArtifactArguments,
        _room: Room,
        request: ToolRequest,
        _emit: Emit,
        _cancelled: asyncio.Event,
        /,
    ) -> ToolEnd:
        try:
            found = await self._store.head(request.tenant, args.sha256)
            if found is None:
                raise ArtifactMissingError  # noqa: TRY301  # the same as where it goes between the two
            if args.offset >= found.size > 0:
                raise ToolFailedError(f"The artifact has {found.size} bytes; there is no byte {args.offset}.")
            pieces = await self._store.get(request.tenant, args.sha256, args.offset, args.offset + args.bytes)
            part = await collected(pieces)
        except ArtifactMissingError:
            raise ToolFailedError(f"There is no artifact {args.sha256}.") from None
        except ArtifactError:
            raise ToolFailedError("The artifact store does not answer. Try again later.") from None
        end = args.offset + len(part)
        place = {"offset": args.offset, "end": end, "size": found.size, "media_type": found.media_type}
        return ToolEnd("succeeded", structured_result([part.decode(errors="replace")], place))
