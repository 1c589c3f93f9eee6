"""What a server does for documents on their way in: types, pipelines, and a sweep each minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from holdfast.app import Holdfast
from holdfast.clock import SystemIds
from holdfast.display import get_logger
from holdfast.documents.file_types import Sniff, file_type_of
from holdfast.documents.pipelines import start_pipelines
from holdfast.errors import HoldfastError, StoreClosed
from holdfast.model.program import Program
from holdfast.server.options import ServerOptions

__all__ = ["best_sniff", "sweeping_uploads", "take_documents_in"]

_log = get_logger("holdfast.documents")

_SWEEP_SECONDS = 60.0


def take_documents_in(hf: Holdfast, graphs: tuple[Program, ...], options: ServerOptions) -> None:
    """Let the uploads of ``hf`` start these graphs, within the limits of a server."""
    start_pipelines(hf, graphs)
    uploads = hf.documents.uploads
    uploads.file_bytes_max = options.file_bytes_max
    uploads.receives_max = options.uploads_at_once_max
    uploads.sniff = best_sniff
    hf.documents.files.outside.permit(options.document_buckets)


def best_sniff(head: bytes, name: str) -> str:
    """Return the type of a file, as the parsers of this process see it, if it has any.

    Raises:
        FileRejected: the file is not accepted.
    """
    return _sniff()(head, name)


def _sniff() -> Sniff:
    try:
        # It needs holdfast[documents], which a server may lack.
        from holdfast.integrations.reading.file_types import sniffed_type
    except ImportError:
        return file_type_of
    return lambda head, name: sniffed_type(head, name).mime


@asynccontextmanager
async def sweeping_uploads(hf: Holdfast) -> AsyncGenerator[None]:
    """Sweep the uploads every minute, beside the block."""
    task = asyncio.create_task(_sweep(hf), name="holdfast uploads")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, StoreClosed):
            await task


async def _sweep(hf: Holdfast) -> None:
    jitter = SystemIds()
    while True:
        # Servers that started together sweep at different times.
        await hf.clock.sleep(_SWEEP_SECONDS * (0.5 + jitter.random()))
        try:
            swept = await hf.documents.uploads.sweep()
        except StoreClosed:
            raise
        except HoldfastError as error:
            _log.warning("the uploads were not swept: %s", error)
        except Exception:
            _log.exception("the uploads were not swept")
        else:
            if swept.removed or swept.finished:
                _log.info("uploads: %d removed, %d finished", swept.removed, swept.finished)
