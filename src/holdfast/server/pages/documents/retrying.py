"""What the buttons of a document's page do: retry its processing, or begin it again."""

from __future__ import annotations

from holdfast.documents.pipelines import pipeline_run_id
from holdfast.model.document import Document, DocumentWorkflow
from holdfast.server.caller import Requester

__all__ = ["process_again", "retry_workflow"]


async def retry_workflow(requester: Requester, workflow: DocumentWorkflow) -> None:
    """Let the run of a failed workflow go on where it failed.

    Raises:
        RunNotFound: the run is deleted.
        RunNotEnded: the run has not failed.
    """
    run = workflow.execution_arn or pipeline_run_id(workflow.id)
    await requester.run(run).retry()


async def process_again(requester: Requester, document: Document) -> None:
    """Begin a new workflow of a document.

    Raises:
        UnknownGraph: this server has no graph of the project's pipeline.
    """
    await requester.hf.documents.uploads.process_again(document.id, tenant=requester.tenant)
