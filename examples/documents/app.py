"""The application with the settings of the environment, for the command line of Holdfast.

``holdfast serve documents.app:graph --models documents.app:MODELS`` serves it, and
``holdfast worker documents.app:graph --models documents.app:MODELS`` adds a worker.
"""

from __future__ import annotations

from documents.application import application

__all__ = ["MODELS", "graph"]

_APPLICATION = application()
graph = _APPLICATION.graph
MODELS = _APPLICATION.models
