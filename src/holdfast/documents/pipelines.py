"""`start_pipelines`: lets uploads start the graph that a project names as its pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from holdfast.documents.uploads import DocumentUploads
from holdfast.errors import UnknownGraph
from holdfast.model.document import DocumentWorkflow, Project
from holdfast.model.program import Program

__all__ = [
    "GraphPipelines",
    "PipelineDocuments",
    "PipelineHost",
    "pipeline_run_id",
    "start_pipelines",
]


class PipelineDocuments(Protocol):
    """What a start writes to a workflow."""

    async def update_workflow(
        self, id: str, *, execution_arn: str | None = None, tenant: str | None = None
    ) -> DocumentWorkflow:
        """Store the run of a workflow."""
        ...

    @property
    def uploads(self) -> DocumentUploads:
        """The uploads, which start pipelines."""
        ...


class PipelineHost(Protocol):
    """What starts runs: a `Holdfast`."""

    @property
    def documents(self) -> PipelineDocuments:
        """The documents of the store."""
        ...

    async def start(
        self, graph: Program[Any, Any], input: Any = None, *, id: str, tenant: str
    ) -> Any:
        """Start a run."""
        ...


class GraphPipelines:
    """Starts the graphs of one process as pipelines of documents."""

    def __init__(self, hf: PipelineHost, graphs: Iterable[Program[Any, Any]]) -> None:
        self._hf = hf
        self._graphs = tuple(graphs)

    def check(self, project: Project) -> None:
        """Check that there is the graph that a project names.

        Raises:
            UnknownGraph: there is not.
        """
        self._graph(project.pipeline)

    async def start(self, workflow: DocumentWorkflow, project: Project) -> None:
        """Start the run of a workflow. Again, it is the same run.

        Raises:
            UnknownGraph: this process does not have the graph of the project.
        """
        run = pipeline_run_id(workflow.id)
        graph = self._graph(project.pipeline)
        if workflow.execution_arn != run:
            # Before the start: who deletes the document finds the run there.
            await self._hf.documents.update_workflow(
                workflow.id, execution_arn=run, tenant=workflow.tenant
            )
        await self._hf.start(graph, {"workflow": workflow.id}, id=run, tenant=workflow.tenant)

    def _graph(self, name: str) -> Program[Any, Any]:
        named = [graph for graph in self._graphs if graph.name == name]
        if not named:
            known = ", ".join(sorted({graph.name for graph in self._graphs})) or "none"
            raise UnknownGraph(
                f"the pipeline of the project is the graph {name!r:.80}, which this process does "
                f"not have; it has: {known}"
            )
        return max(named, key=lambda graph: graph.version)


def start_pipelines(hf: PipelineHost, graphs: Iterable[Program[Any, Any]]) -> None:
    """Let the uploads of ``hf`` start these graphs, by the names that projects give."""
    hf.documents.uploads.pipelines = GraphPipelines(hf, graphs)


def pipeline_run_id(workflow: str) -> str:
    """Return the id of the run that processes a workflow of a document."""
    return f"doc-{workflow}"
