"""`s3_documents`: adds each uploaded object to a project as a document, and runs what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.app import Holdfast
from holdfast.display import get_logger
from holdfast.documents.outside_files import s3_uri
from holdfast.documents.pipelines import start_pipelines
from holdfast.errors import FileRejected, FileTooLarge, UploadNotFound
from holdfast.integrations.aws_lambda.due_runs import LambdaOptions, run_due_beside
from holdfast.integrations.aws_lambda.invocation import (
    Event,
    Handler,
    LambdaContext,
    run_in_loop,
    seconds_left,
)
from holdfast.integrations.aws_lambda.s3_events import S3Object, messages_of
from holdfast.integrations.aws_lambda.s3_trigger import ObjectStarts
from holdfast.model.program import Program

__all__ = ["s3_documents"]

_log = get_logger("holdfast.lambda")


def s3_documents(
    hf: Holdfast,
    graphs: Iterable[Program],
    *,
    project: str | Callable[[S3Object], str],
    tenant_of: Callable[[S3Object], str] | None = None,
    options: LambdaOptions | None = None,
) -> Handler:
    """Return a handler that adds each object of an event of S3 as a document, and runs what is due.

    ``project`` is the id of the project, or returns it for an object. Its pipeline must be one of
    ``graphs``. The file stays where it is: the document has its address. An event that comes twice
    adds nothing twice: the id is the digest of the bucket, the key and the version. An object of a
    type that is not accepted is logged and left out. Events and failures are as with `s3_trigger`.
    """
    served = tuple(graphs)
    start_pipelines(hf, served)

    async def add(uploaded: S3Object) -> bool:
        """Add an object; return whether it is a new one."""
        uploads = hf.documents.uploads
        # Who configured the event chose the bucket, and the function's role permits to read it.
        hf.documents.files.outside.permit((uploaded.bucket,))
        tenant = None if tenant_of is None else tenant_of(uploaded)
        is_new = await _is_new(hf, uploaded.id, tenant)
        try:
            await uploads.add_source(
                project if isinstance(project, str) else project(uploaded),
                uri=s3_uri(uploaded.bucket, uploaded.key, uploaded.version_id),
                id=uploaded.id,
                tenant=tenant,
            )
        except (FileRejected, FileTooLarge) as error:
            # Another attempt would meet the same file.
            _log.warning("%s is not added: %s", uploaded.uri, error)
            return False
        return is_new

    def handle(event: Event, context: LambdaContext) -> dict[str, Any]:
        starts = ObjectStarts(messages_of(event), add)
        seconds = seconds_left(context)
        counts = run_in_loop(
            lambda: run_due_beside(starts.carry_out, hf, served, seconds=seconds, options=options)
        )
        return starts.answer(counts)

    return handle


async def _is_new(hf: Holdfast, id: str, tenant: str | None) -> bool:
    try:
        await hf.documents.uploads.get(id, tenant=tenant)
    except UploadNotFound:
        return True
    except FileRejected:
        return False
    return False
