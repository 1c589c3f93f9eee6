"""The graph: prepare, read in parallel, build segments, analyse, relate, sum up.

A node passes on indices and addresses. Whatever a worker was doing when it died, the next one goes
on there: what a model said is recorded, what was read is stored.
"""

from __future__ import annotations

from documents.analysis import add_analysis
from documents.automation import add_automation
from documents.building import add_building
from documents.parsing import add_parsing
from documents.preparation import add_preparation
from documents.processing import Desk, Processing
from documents.recognition import add_recognition
from documents.relating import add_relating
from documents.speech import add_transcription
from documents.summing import add_summing
from documents.web import add_crawling
from holdfast import Graph, days

__all__ = ["documents_graph"]


def documents_graph(desk: Desk) -> Graph[Processing]:
    """Return the graph ``documents``."""
    graph = Graph(
        "documents",
        Processing,
        models=["small", "large"],
        expires=days(30),
        # Two steps that run side by side may tell it, never both for one document.
        reducers={"segments": "max"},
    )
    prepare = add_preparation(graph, desk)
    readers = [
        add(graph, desk)
        for add in (add_parsing, add_recognition, add_automation, add_transcription, add_crawling)
    ]
    build, analyse = add_building(graph, desk), add_analysis(graph, desk)
    relate, sum_up = add_relating(graph, desk), add_summing(graph, desk)
    graph.fork(prepare, readers, join=build)
    graph.route(build, analyse, relate, sum_up)
    return graph
